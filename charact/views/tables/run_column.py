"""The column that names the run, in tables across several runs."""

from charact.views.tables.model import Column

RUN = Column("run", "Run", unbroken=True)
