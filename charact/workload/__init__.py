"""What a workload is, for those who write one: `Workload` and what its methods are given."""

from charact.datasets._common.request import DataRequest, Synthetic
from charact.workload.base import Workload
from charact.workload.image_classification import ImageClassification
from charact.workload.registry import all_workloads, find_workload

__all__ = ["DataRequest", "ImageClassification", "Synthetic", "Workload", "all_workloads", "find_workload"]
