"""The loss compares each utterance with each speaker in Python loops.

Report: HarryVolek/PyTorch_Speaker_Verification, pull request 33.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

REMEDY = bool(os.environ.get("REMEDY"))


class Utterances(Dataset):
    """Spectrograms of utterances, some of each speaker."""

    def __init__(self, num_speakers, num_utterances):
        self.voices = torch.randn(num_speakers, 40)
        self.num_utterances = num_utterances

    def __len__(self):
        return len(self.voices)

    def __getitem__(self, speaker):
        return self.voices[speaker] + torch.randn(self.num_utterances, 40, 40)


class SpeechEmbedder(nn.Module):
    """Embeddings of utterances."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(40, 64, batch_first=True)
        self.projection = nn.Linear(64, 32)

    def forward(self, frames):
        return F.normalize(self.projection(self.lstm(frames)[0][:, -1]), dim=1)


def similarities(embeddings):
    """Cosine of each utterance and each speaker's centroid; without the utterance itself for its own speaker."""
    speakers, utterances, _ = embeddings.shape
    if REMEDY:
        sums = embeddings.sum(1)
        own = (sums[:, None] - embeddings) / (utterances - 1)
        cosines = F.cosine_similarity(embeddings[:, :, None], (sums / utterances)[None, None], dim=3)
        same = torch.eye(speakers, dtype=torch.bool)[:, None].expand_as(cosines)
        return torch.where(same, F.cosine_similarity(embeddings, own, dim=2)[..., None], cosines)
    cosines = torch.zeros(speakers, utterances, speakers)
    for speaker, of_speaker in enumerate(embeddings):
        for number, utterance in enumerate(of_speaker):
            for other in range(speakers):
                if other == speaker:
                    centroid = (embeddings[other].sum(0) - utterance) / (utterances - 1)
                else:
                    centroid = embeddings[other].mean(0)
                cosines[speaker, number, other] = F.cosine_similarity(utterance, centroid, dim=0)
    return cosines


def main():
    """Train the embedder."""
    torch.manual_seed(0)
    embedder, scale = SpeechEmbedder(), nn.Parameter(torch.tensor(10.0))
    optimizer = torch.optim.SGD([*embedder.parameters(), scale], 0.01)
    loader = DataLoader(Utterances(120, 5), batch_size=6, shuffle=True, drop_last=True)
    start = time.perf_counter()
    for _ in range(6):
        for frames in loader:
            embeddings = embedder(frames.flatten(0, 1)).unflatten(0, frames.shape[:2])
            logits = scale * similarities(embeddings)
            labels = torch.arange(len(frames)).repeat_interleave(frames.shape[1])
            loss = F.cross_entropy(logits.flatten(0, 1), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")


main()
