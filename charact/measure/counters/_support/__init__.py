"""What counter sources share."""
