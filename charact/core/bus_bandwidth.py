"""Bus bandwidth of collectives: a bandwidth that compares with that of a link, whatever the number of ranks."""


def bus_factor(operation: str, num_ranks: int) -> float:
    """Return the bytes that each link carries over the bytes of the collective, the larger of inputs and outputs.

    It is 2 (n-1)/n for an all_reduce of n ranks, 1 for broadcast and reduce, and (n-1)/n for other operations.

    *Source*: NVIDIA nccl-tests, doc/PERFORMANCE.md.
    """
    if operation in ("broadcast", "reduce"):
        return 1.0
    return (2 if operation == "all_reduce" else 1) * (num_ranks - 1) / num_ranks
