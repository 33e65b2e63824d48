"""API for authors of workloads: `Workload` and the types of its methods."""

from charact.datasets._common.request import DataRequest, Synthetic
from charact.workload.base import Workload
from charact.workload.generation import DecoderGenerator, Generator, RecomputingGenerator
from charact.workload.image_classification import ImageClassification
from charact.workload.registry import all_workloads, find_workload

__all__ = ["DataRequest", "DecoderGenerator", "Generator", "ImageClassification", "RecomputingGenerator", "Synthetic",
           "Workload", "all_workloads", "find_workload"]
