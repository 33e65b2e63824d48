"""ViT, DiT, U-Net and DLRM: parameters and FLOP against closed forms and published figures, and how they behave."""

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from support.predictions import measured_peak, predicted
from support.published import build, first_batch, make_case, unmarked

from charact.core.errors import UserError
from charact.datasets._common.request import DataRequest, Synthetic
from charact.datasets._samples.clicks import zipf_rows
from charact.execution.loop import Loop
from charact.measure.passes.flops import flop_pass
from charact.workload.registry import find_workload

WIDTHS_AND_LAYERS = {"tiny": (192, 12), "s16": (384, 12), "b16": (768, 12), "s2": (384, 12), "b2": (768, 12),
                     "xl2": (1152, 28)}


def encoder(num_tokens: int, width: int) -> tuple[int, int]:
    """Parameters and multiply-accumulates of a layer's projections, scores and pointwise network."""
    return 12 * width**2 + 9 * width, num_tokens * 12 * width**2 + 2 * num_tokens**2 * width


def vit(variant: str, size: int) -> tuple[int, int]:
    """Parameters and multiply-accumulates of a sample, for 1,000 classes."""
    width, num_layers = WIDTHS_AND_LAYERS[variant]
    num_patches = (size // 16) ** 2
    parameters, macs = encoder(num_patches + 1, width)
    embedding, norms, head = 3 * 16**2 * width, (4 * num_layers + 2) * width, 1000 * width
    tokens = (1 + 1 + num_patches + 1) * width  # bias of the patches, class token, positions
    return (num_layers * parameters + embedding + norms + head + 1000 + tokens,
            num_layers * macs + num_patches * embedding + head)


def dit(variant: str, size: int) -> tuple[int, int]:
    """Parameters and multiply-accumulates of a sample, for 1,000 classes."""
    width, num_layers = WIDTHS_AND_LAYERS[variant]
    num_patches = (size // 16) ** 2
    parameters, macs = encoder(num_patches, width)
    embedding, head = 2 * 2 * 4 * width, width * 2 * 2 * 8
    timestep, of_layer, of_head = 256 * width + width**2, 6 * width**2, 2 * width**2
    biases = width + 32 + 2 * width + (6 * num_layers + 2) * width
    return (num_layers * (parameters + of_layer) + embedding + head + timestep + 1001 * width + of_head + biases,
            num_layers * (macs + of_layer) + num_patches * (embedding + head) + timestep + of_head)


def unet(variant: str, size: int) -> tuple[int, int]:
    """Parameters and multiply-accumulates of a sample, for 2 classes."""
    width = int(variant.removeprefix("base"))
    area = size**2
    parameters = macs = 0
    for level in range(5):  # the way down
        each, below = width * 2**level, 3 if level == 0 else width * 2 ** (level - 1)
        weights = 9 * each * (below + each)
        parameters += weights + 4 * each
        macs += weights * area // 4**level
    for level in range(4):  # the way up
        each = width * 2**level
        weights, upsampling = 9 * each * 3 * each, 4 * 2 * each * each
        parameters += weights + 4 * each + upsampling + each
        macs += weights * area // 4**level + upsampling * area // 4 ** (level + 1)
    return parameters + 2 * width + 2, macs + 2 * width * area


def dlrm(variant: str, num_lookups: int) -> tuple[int, int]:
    """Parameters and multiply-accumulates of a sample, however many rows it looks up."""
    bottom, top = [13, 512, 256, 64, 16], [16 + 27 * 26 // 2, 512, 256, 1]
    products = [list(pairwise(widths)) for widths in (bottom, top)]
    weights = sum(inputs * outputs for network in products for inputs, outputs in network)
    biases = sum(bottom[1:]) + sum(top[1:])
    num_rows = {"tiny": 119_889, "kaggle": 33_762_577}[variant]
    return 16 * num_rows + weights + biases, weights + 27 * 27 * 16


CASES: list[tuple[str, str, int, Callable[[str, int], tuple[int, int]]]] = [
    ("vit", "tiny", 224, vit), ("vit", "tiny", 96, vit), ("vit", "s16", 224, vit), ("vit", "b16", 224, vit),
    ("vit", "b16", 384, vit),
    ("dit", "s2", 256, dit), ("dit", "s2", 512, dit), ("dit", "b2", 256, dit), ("dit", "xl2", 256, dit),
    ("unet", "base16", 256, unet), ("unet", "base64", 256, unet), ("unet", "base64", 512, unet),
    ("dlrm", "tiny", 1, dlrm), ("dlrm", "tiny", 8, dlrm), ("dlrm", "kaggle", 1, dlrm),
]
# Parameters: timm's `vit_tiny_patch16_224`, `vit_small_patch16_224` and `vit_base_patch16_224`; facebookresearch/DiT
# without its table of positions, which is no weight here; milesial/Pytorch-UNet. GMACs: the papers' and timm's tables.
PUBLISHED_PARAMETERS = {
    ("vit", "tiny", 224): 5_717_416, ("vit", "s16", 224): 22_050_664, ("vit", "b16", 224): 86_567_656,
    ("dit", "xl2", 256): 675_129_632 - 256 * 1152, ("unet", "base64", 256): 31_037_698,
}
PUBLISHED_GMACS = {
    ("vit", "s16", 224): 4.61, ("vit", "b16", 224): 17.58,
    ("dit", "s2", 256): 6.06, ("dit", "b2", 256): 23.01, ("dit", "xl2", 256): 118.64,
}


@pytest.mark.parametrize(("name", "variant", "size", "closed_form"), CASES)
def test_parameters_and_forward_flop_are_those_of_the_closed_form(
    name: str, variant: str, size: int, closed_form: Callable[[str, int], tuple[int, int]]
) -> None:
    case = make_case(name, variant, "infer", batch_size=2, input_size=size)
    with torch.device("meta"):
        model = case.workload.model(case.dataset())
    parameters, macs = closed_form(variant, size)
    assert sum(each.numel() for each in model.parameters()) == parameters
    rows, facts = flop_pass(case, first_batch(case))
    assert facts.uncounted == []
    assert sum(row["flop"] or 0 for row in rows) == 2 * 2 * macs


@pytest.mark.parametrize(("case", "published"), PUBLISHED_PARAMETERS.items())
def test_closed_forms_have_the_published_parameters(case: tuple[str, str, int], published: int) -> None:
    name, *sizes = case
    assert {"vit": vit, "dit": dit, "unet": unet}[name](*sizes)[0] == published


@pytest.mark.parametrize(("case", "published"), PUBLISHED_GMACS.items())
def test_closed_forms_have_the_published_macs(case: tuple[str, str, int], published: float) -> None:
    name, *sizes = case
    assert {"vit": vit, "dit": dit}[name](*sizes)[1] / 1e9 == pytest.approx(published, rel=0.005)


@pytest.mark.parametrize(("name", "size", "remedy"), [
    ("vit", 100, "input size 100 does not suit vit (needs a multiple of 16): choose 96 or 112"),
    ("dit", 40, "input size 40 does not suit dit (needs a multiple of 16): choose 32 or 48"),
    ("unet", 31, "input size 31 does not suit unet (needs a multiple of 16): choose 16 or 32"),
    ("vit", 8, "input size 8 is too small for vit (needs at least 16)"),
])
def test_an_input_size_between_steps_is_refused_with_its_neighbours(name: str, size: int, remedy: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(remedy)}$"):
        make_case(name, None, "train", batch_size=2, input_size=size).check()


def test_a_new_vit_tells_patches_apart_by_their_positions() -> None:
    torch.manual_seed(0)
    workload, _ = build("vit", "tiny")
    model = workload.model(workload.dataset(32, DataRequest())).eval()
    image = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        assert not torch.allclose(model(image), model(image.roll(16, dims=-1)), atol=1e-4)
        model.positions.zero_()
        assert torch.allclose(model(image), model(image.roll(16, dims=-1)), atol=1e-4)


class TestDiT:
    def model(self, size: int = 64) -> Any:
        torch.manual_seed(0)
        workload = find_workload("dit").prepare()
        return workload.model(workload.dataset(size, DataRequest()))

    def test_new_weights_predict_nothing(self) -> None:
        workload, model = find_workload("dit").prepare(), self.model()
        batch = [torch.randn(4, 4, 8, 8), torch.arange(4)]
        outputs = workload.forward(model, batch)
        assert not outputs.outputs.any()
        assert workload.loss(outputs, batch).item() == pytest.approx(float(outputs.noise.square().mean()))

    def test_outputs_are_where_their_patch_is(self) -> None:
        model = self.model().eval()
        torch.nn.init.normal_(model.head.weight)  # the gates of attention are zero: patches do not mix
        latents = torch.randn(1, 4, 8, 8)
        changed = latents.clone()
        changed[:, :, 2:4, 6:8] += 1
        steps, labels = torch.tensor([5]), torch.tensor([3])
        with torch.no_grad():
            is_other = (model.predict(latents, steps, labels) != model.predict(changed, steps, labels))[0].any(0)
        assert is_other[2:4, 6:8].all()
        assert is_other.sum() == 4

    def test_a_label_and_a_timestep_matter(self) -> None:
        model = self.model().eval()
        for module in (model.head, model.modulation[1]):
            torch.nn.init.normal_(module.weight)
        latents = torch.randn(1, 4, 8, 8)
        with torch.no_grad():
            first, other_step, other_label = (
                model.predict(latents, torch.tensor([step]), torch.tensor([label]))
                for step, label in ((5, 3), (900, 3), (5, 4)))
        assert not torch.allclose(first, other_step, atol=1e-3)
        assert not torch.allclose(first, other_label, atol=1e-3)

    def test_noise_grows_with_the_timestep(self) -> None:
        model = self.model()
        squares = model.signal_scale**2 + model.noise_scale**2
        assert torch.allclose(squares, torch.ones(1000), atol=1e-5)
        assert (model.noise_scale.diff() > 0).all()
        assert model.signal_scale[-1] < 0.01  # at the last timestep hardly any signal is left


def test_masks_are_classes_of_their_images_pixels() -> None:
    dataset: Any = find_workload("unet").prepare().dataset(32, DataRequest(synthetic=Synthetic(num_classes=5)))
    image, mask = dataset[3]
    assert (image.shape, mask.shape, mask.dtype) == ((3, 32, 32), (32, 32), torch.int64)
    assert mask.unique().tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(mask, (image[0] * 5).floor().long())


@pytest.mark.parametrize("name", ["dit", "unet", "dlrm"])
def test_stored_data_sets_of_another_kind_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"cifar10 has image data, .* choose from synthetic"):
        find_workload(name).prepare().dataset(32, DataRequest("cifar10"))


@pytest.mark.parametrize("name", ["vit", "dit", "unet"])
def test_a_model_has_the_requested_classes(name: str) -> None:
    workload = find_workload(name).prepare()
    dataset: Any = workload.dataset(16, DataRequest(synthetic=Synthetic(num_classes=7)))
    with torch.device("meta"):
        model: Any = workload.model(dataset)
    classes = {"vit": lambda: model.head.out_features, "dit": lambda: model.label.num_embeddings - 1,
               "unet": lambda: model.head.out_channels}
    assert classes[name]() == 7


class TestDLRM:
    def test_an_iteration_changes_only_the_rows_that_were_looked_up(self) -> None:
        loop = Loop(make_case("dlrm", "tiny", "train", batch_size=4, input_size=2))
        (before, *_), table = [each.weight.detach().clone() for each in loop.model.tables], loop.model.tables[0]
        rows = set(loop.iteration(unmarked).batch[1][:, 0].flatten().tolist())
        changed = (table.weight != before).any(1).nonzero().flatten().tolist()
        assert set(changed) == rows
        assert 1 < len(rows) <= 8

    def test_lookups_are_summed(self) -> None:
        torch.manual_seed(0)
        workload, _ = build("dlrm", "tiny")
        model = workload.model(workload.dataset(1, DataRequest()))
        dense, rows = torch.randn(2, 13), torch.zeros(2, 26, 1, dtype=torch.int64)
        with torch.no_grad():
            thrice = model(dense, rows.expand(-1, -1, 3))
            for table in model.tables:
                table.weight[0] *= 3
            assert torch.allclose(model(dense, rows), thrice, atol=1e-5)

    def test_the_share_of_clicks_is_that_of_an_upper_quartile(self) -> None:
        dataset: Any = find_workload("dlrm").prepare().dataset(1, DataRequest())
        labels = torch.stack([dataset[index][2] for index in range(10_000)])
        assert labels.mean().item() == pytest.approx(0.25, abs=0.02)
        assert set(labels.tolist()) == {0, 1}

    @pytest.mark.parametrize(("exponent", "share_of_first"), [
        (0.0, 1 / 50), (1.0, np.log(2) / np.log(51)), (2.0, (1 - 1 / 2) / (1 - 1 / 51))])
    def test_rows_follow_a_power_law(self, exponent: float, share_of_first: float) -> None:
        rows = zipf_rows((np.arange(100_000) + 0.5) / 100_000, np.array(50), exponent)
        assert (rows == 0).mean() == pytest.approx(share_of_first, abs=1e-4)
        assert (np.diff(np.bincount(rows)) <= 1).all()
        assert (rows.min(), rows.max()) == (0, 49)

    @pytest.mark.parametrize(("size", "batch_size"), [(1, 64), (5, 32)])
    def test_sparse_gradients_are_estimated(self, size: int, batch_size: int) -> None:
        case = make_case("dlrm", "tiny", "train", batch_size, size)
        estimate = predicted(case)
        assert estimate.peak_bytes == pytest.approx(measured_peak(case), rel=1e-4)
        gradients = sum(row["bytes"] for row in estimate.rows if (row["kind"], row["phase"], row["category"]) == (
            "phase_peak", "update", "gradients"))
        _, macs = dlrm("tiny", size)
        of_networks = 4 * (macs - 27 * 27 * 16 + 1617)
        of_tables = batch_size * 26 * size * 4 * 16  # their rows belong to the batch
        assert gradients == of_networks + of_tables
