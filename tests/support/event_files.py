"""Reading TensorBoard's event files."""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util


def read(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """Scalars as TensorBoard's own reader sees them: (step, value) by tag."""
    events = EventAccumulator(str(directory), size_guidance={"tensors": 0})
    events.Reload()
    for tag in events.Tags()["tensors"]:
        assert events.SummaryMetadata(tag).plugin_data.plugin_name == "scalars"
    return {
        tag: [(event.step, float(tensor_util.make_ndarray(event.tensor_proto))) for event in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
    }
