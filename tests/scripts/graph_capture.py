"""Captures calls of two modules as a CUDA graph, for longer than charact's time between flushes, and replays it."""

import time

import torch

net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU()).cuda()
head = torch.nn.Linear(256, 10).cuda()
inputs = torch.randn(32, 256, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.no_grad():
    with torch.cuda.stream(side):
        for _ in range(3):
            head(net(inputs))
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hidden = net(inputs)
        time.sleep(0.4)
        outputs = head(hidden)
        head(hidden)
    for _ in range(50):
        graph.replay()
torch.cuda.synchronize()
print("GRAPH", float((outputs - head(net(inputs))).abs().max()) < 1e-3)
