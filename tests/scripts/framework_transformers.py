"""Hugging Face's Trainer: trains bare, then watched, then watched with an error in the fifth batch."""

import gc
import json
import sys
import tempfile
import time

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

from charact.integrations.transformers import CharactCallback


class Model(BertForSequenceClassification):
    def __init__(self, fail_at: int | None) -> None:
        super().__init__(BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                                    intermediate_size=16, max_position_embeddings=16))
        self.times: dict[str, list[float]] = {"forward": []}
        self._fail_at = fail_at

    def forward(self, **inputs: object) -> object:
        if len(self.times["forward"]) == self._fail_at:
            raise RuntimeError("on purpose")
        start_s = time.perf_counter()
        time.sleep(0.02)
        outputs = super().forward(**inputs)
        if self.training:
            self.times["forward"].append(time.perf_counter() - start_s)
        return outputs


class Sentences(Dataset):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.full((8,), index), "attention_mask": torch.ones(8, dtype=torch.long),
                "labels": torch.tensor(index % 2)}


def train(callbacks: list[object], fail_at: int | None = None) -> tuple[Model, list[float]]:
    set_seed(0)
    model = Model(fail_at)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=2, per_device_eval_batch_size=4, num_train_epochs=2,
            gradient_accumulation_steps=2, eval_strategy="epoch", logging_steps=1, save_strategy="no", report_to=[],
            use_cpu=True, disable_tqdm=True, remove_unused_columns=False)
        trainer = Trainer(model, arguments, train_dataset=Sentences(), eval_dataset=Sentences(), callbacks=callbacks)
        trainer.train()
    return model, [entry[key] for entry in trainer.state.log_history for key in ("loss", "eval_loss") if key in entry]


bare = train([])[1]
callback = CharactCallback("bert", out=sys.argv[1])
model, watched = train([callback])
run = callback.profiler.run.path
try:
    train([callback], fail_at=4)
except RuntimeError as error:
    raised = str(error)
profiler = callback.profiler
del callback
gc.collect()  # Trainer and callback hold each other
# A micro-batch's forward: two make an iteration.
pairs = [sum(model.times["forward"][number:number + 2]) for number in range(0, 16, 2)]
print(json.dumps({
    "bare": bare, "watched": watched, "times": {"forward": pairs}, "run": str(run), "raised": raised,
    "failed": str(profiler.run.path), "train": 8, "infer": 2 * 4, "batch_sizes": [2 * 2, 4],
}))
