"""A language model: one stream cut into columns, a hidden state carried along, weights updated by hand."""

import math

import torch
from own_clock import num_iterations, phase
from torch import Tensor, nn
from torch.nn import functional

NUM_WORDS, BPTT, BATCH_SIZE, CLIP = 500, 20, 8, 0.25


class RNNModel(nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.encoder = nn.Embedding(NUM_WORDS, width)
        self.rnn = nn.LSTM(width, width, 2, dropout=0.2)
        self.decoder = nn.Linear(width, NUM_WORDS)

    def forward(self, words: Tensor, hidden: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        output, hidden = self.rnn(self.encoder(words), hidden)
        return functional.log_softmax(self.decoder(output).view(-1, NUM_WORDS), dim=1), hidden

    def init_hidden(self, batch_size: int) -> tuple[Tensor, ...]:
        weight = next(self.parameters())
        return tuple(weight.new_zeros(2, batch_size, self.rnn.hidden_size) for _ in range(2))


def batchify(stream: Tensor, batch_size: int) -> Tensor:
    length = stream.size(0) // batch_size
    return stream.narrow(0, 0, length * batch_size).view(batch_size, -1).t().contiguous()


def repackage_hidden(hidden):
    return hidden.detach() if isinstance(hidden, Tensor) else tuple(repackage_hidden(one) for one in hidden)


def get_batch(source: Tensor, place: int) -> tuple[Tensor, Tensor]:
    length = min(BPTT, len(source) - 1 - place)
    return source[place:place + length], source[place + 1:place + 1 + length].view(-1)


def evaluate(source: Tensor) -> float:
    model.eval()
    total, hidden = 0.0, model.init_hidden(BATCH_SIZE)
    with torch.no_grad():
        for place in range(0, source.size(0) - 1, BPTT):
            num_iterations["infer"] += 1
            data, targets = get_batch(source, place)
            output, hidden = model(data, hidden)
            hidden = repackage_hidden(hidden)
            total += len(data) * criterion(output, targets).item()
    return total / (len(source) - 1)


def train() -> None:
    model.train()
    hidden = model.init_hidden(BATCH_SIZE)
    for batch, place in enumerate(range(0, train_data.size(0) - 1, BPTT)):
        num_iterations["train"] += 1
        data, targets = get_batch(train_data, place)
        model.zero_grad()
        hidden = repackage_hidden(hidden)
        with phase("forward"):
            output, hidden = model(data, hidden)
        with phase("loss"):
            loss = criterion(output, targets)
        with phase("backward"):
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-lr)
        if batch % 3 == 0:
            print(f"| epoch {epoch} | {batch} batches | loss {loss.item():5.2f} | ppl {math.exp(loss):.2f}")


torch.manual_seed(1111)
train_data = batchify(torch.randint(0, NUM_WORDS, (BATCH_SIZE * (6 * BPTT + 1),)), BATCH_SIZE)
valid_data = batchify(torch.randint(0, NUM_WORDS, (BATCH_SIZE * (2 * BPTT + 1),)), BATCH_SIZE)
model = RNNModel()
criterion = nn.NLLLoss()
lr, best = 20.0, None
try:
    for epoch in range(1, 3):
        train()
        loss = evaluate(valid_data)
        print(f"| end of epoch {epoch} | valid loss {loss:5.2f}")
        if not best or loss < best:
            best = loss
        else:
            lr /= 4.0
except KeyboardInterrupt:
    print("Exiting from training early")
print(f"| End of training | loss {evaluate(valid_data):5.2f}")
