"""WikiText-2: Wikipedia articles, one paragraph per line, words separated by spaces, rare ones replaced by `<unk>`.

The words of each line, including empty ones, are followed by `<eos>`. The vocabulary has the words of the train file,
by first occurrence; without that file, those of the split, which are fewer.
Source: Merity et al., "Pointer Sentinel Mixture Models", ICLR 2017; the files as in pytorch/examples
(`word_language_model`), or under the names of the original archive.
"""

from pathlib import Path

from charact.core.errors import UserError
from charact.datasets._common.spec import PublishedFile, Split, StoredDatasetSpec
from charact.datasets._common.vocabulary import Tokens, Vocabulary

END_OF_LINE, UNKNOWN = "<eos>", "<unk>"
NUM_LINES: dict[Split, int] = {"train": 36_718, "valid": 3_760, "test": 4_358}
NUM_TOKENS: dict[Split, int] = {"train": 2_088_628, "valid": 217_646, "test": 245_569}
"""Words of each split, with one `<eos>` per line."""
MOST_LINES = 1_000_000


def tokenize(content: bytes, path: Path) -> list[list[str]]:
    """Return the words of every line of a file's content, each with its end mark; `path` is for messages."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start:,}): fetch it again") from error
    # Not splitlines(): articles have characters that it treats as the end of a line.
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [[*line.split(), END_OF_LINE] for line in lines]


def read_split(spec: StoredDatasetSpec, directory: Path, split: Split) -> tuple[Tokens, Vocabulary]:
    """Return the encoded words of a split, and their vocabulary."""
    words = _read(spec, directory, split)
    known = words
    if split != "train" and spec.place(directory, *_names("train")) is not None:
        known = _read(spec, directory, "train")
    vocabulary = Vocabulary.from_tokens(known, specials=(UNKNOWN,), unknown=UNKNOWN)
    return vocabulary.encode(words), vocabulary


def _read(spec: StoredDatasetSpec, directory: Path, split: Split) -> list[str]:
    path, content = spec.find(directory, *_names(split))
    num_lines = content.count(b"\n") + (not content.endswith(b"\n"))
    if num_lines > MOST_LINES:  # a list for each would need too much memory
        raise UserError(f"{path} has {num_lines:,} lines, {NUM_LINES[split]:,} were published: fetch it again")
    lines = tokenize(content, path)
    num_tokens = sum(map(len, lines))
    if (len(lines), num_tokens) != (NUM_LINES[split], NUM_TOKENS[split]):
        raise UserError(f"{path} has {len(lines):,} lines and {num_tokens:,} words for {split}, "
                        f"{NUM_LINES[split]:,} and {NUM_TOKENS[split]:,} were published: "
                        f"fetch it again from {spec.source}")
    return [word for line in lines for word in line]


def _names(split: Split) -> tuple[str, str]:
    return f"{split}.txt", f"wiki.{split}.tokens"


DATASETS = [
    StoredDatasetSpec(
        name="wikitext2", kind="language_model", splits=("train", "valid", "test"),
        description="articles of Wikipedia, 2.1 million words, 33,278 different ones (without the train file: the "
                    "split's own)",
        source="https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2/",
        home="wikitext2", folders=("wikitext-2",),
        files=(
            PublishedFile("train.txt", 10_797_148, "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
                          splits=("train",)),
            PublishedFile("valid.txt", 1_121_681, "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
                          splits=("valid",)),
            PublishedFile("test.txt", 1_256_449, "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
                          splits=("test",)),
            # For these, the published numbers of lines and words are compared.
            *(PublishedFile(f"wiki.{split}.tokens", None, None, most_bytes=2**24) for split in NUM_LINES),
        ),
        read=read_split,
    ),
]
