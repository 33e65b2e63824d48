"""Redaction of secrets and of names of the user and the home directory in records. Imports no torch.

All parts of a record pass through here: manifests and event logs through `redacted`, text columns through
`redacted_column`, traces through `redact_chunks`. A second pass changes nothing.

*Error*: arguments are recognized by their names, and values by their formats. A secret without a known name or format
is not found.
"""

import contextlib
import functools
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

REDACTED = "<redacted>"
USER = "<user>"
"""Replaces the user's name as a folder of a path; `expanded_path` restores it."""
HOST = "<host>"

_SECRET_STEMS = re.compile(
    r"passw|passphrase|passcode|secret|token(?!i[sz])|credential|cookie|apikey|authori[sz]|authentic|bearer|signature"
    r"|webhook|(?:key|pwd|passwd|auth|creds?)$")
_SECRET_WORDS = {"keys", "pass", "pw", "oauth2", "jwt", "sig", "sas", "otp", "totp", "dsn", "sessionid"}
_COUNT_WORDS = {"num", "n", "max", "min", "len", "length", "size", "dim", "dims", "count", "per", "heads", "head", "id",
                "rate", "ratio", "frac", "prob", "limit", "layers", "batch", "use"}  # fmt: skip
_ATTENTION_WORDS = {"past", "query", "queries", "key", "keys", "value", "values", "padding", "mask", "states", "cache",
                    "heads", "proj"}  # fmt: skip
"""Words of names such as `past_key_values` and `key_padding_mask`, which are no secrets."""
_NO_SECRETS = {"", "0", "1", "true", "false", "yes", "no", "on", "off", "none", "null"}
_NO_SECRET_VARIABLES = {"PWD", "OLDPWD", "TOKENIZERS_PARALLELISM"}
_AMBIGUOUS = {"key", "keys", "pass", "auth", "sig", "pw"}
"""Words that error messages put before a colon: alone they do not mark a secret."""

_TOKENS = re.compile(
    r"-----BEGIN [A-Z ]*(?:PRIVATE KEY|CERTIFICATE)[A-Z ]*-----(?:.*?-----END [A-Z ]+-----|.*)"
    r"|\bhf_[A-Za-z0-9]{16,}|\bgh[opsur]_[A-Za-z0-9]{16,}|\bgithub_pat_\w{16,}|\bgl[a-z]{2,5}-[\w-]{16,}"
    r"|\b[srp]k[-_](?:live_|test_|ant-|proj-|or-|lf-)?[A-Za-z0-9_-]{16,}|\b(?:AKIA|ASIA)[A-Z0-9]{12,}"
    r"|\bxox[a-z]-[\w-]{8,}|\bxapp-[\w-]{8,}|\bAIza[\w-]{30,}|\bya29\.[\w-]{16,}|\bnpm_[A-Za-z0-9]{16,}"
    r"|\bpypi-[\w-]{16,}|\bnvapi-[\w-]{16,}|\br8_[A-Za-z0-9]{16,}|\bdop_v1_[a-f0-9]{16,}|\blsv2_\w{16,}"
    r"|\bwandb_v\d_\w{16,}|\bSG\.[\w-]{8,}\.[\w-]{8,}|\beyJ[\w-]{4,}\.[\w-]{4,}(?:\.[\w-]*)?"
    r"|(?<=hooks\.slack\.com/services/)\S+|(?<=/api/webhooks/)\S+", re.DOTALL)  # fmt: skip
_HEX_TOKEN = re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{40}(?![0-9A-Za-z])")
_SCHEME = re.compile(r"(?i)\b((?:bearer|basic)\s++)(?!<redacted>)[\w.~+/=-]{6,}")
_HEADER = re.compile(
    r"(?im)\b((?:proxy-)?authorization|(?:set-)?cookie|x-[\w-]*(?:key|token|secret|auth))"
    r"(\s*+[:=]\s*+)(?!<redacted>)[^\n\"']+")
# Possessive, and only from the beginning of a word, to scan a long text without a match only once.
_LOGIN = re.compile(r"((?<![\w+.-])[\w+.-]++://)[^\s/?#\"']*@")
_PASSWORD_IN_URL = re.compile(r"(?<![\w+.-])[\w+.-]++://[^\s/?#\"'<>:@]*:([^\s/?#\"'<>]+)@")
_VALUE = r"(?P<value>\\?\"[^\"]*\"|\\?'[^']*'|[^\s\"',;&)}\]]+)"
_ASSIGNED = re.compile(r"(?<![\w.\-])[.\-]*+(?P<name>\w[\w.\-]*+)(?P<between>\\?[\"']?\s*[=:]\s*)" + _VALUE)
_OPTION = re.compile(
    r"(?<![\w-])--?(?P<name>[A-Za-z][\w.\-]*)(?P<between>\s+|[\"'],\s*[\"'])(?P<value>[^\s\"'-][^\s\"']*)")
_NAMED_ARGUMENT = re.compile(r"(?P<name>(?:--?|[+~]+)?[A-Za-z_][\w.\-/@\[\]]*)=(?P<value>.*)", re.DOTALL)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_NUMBER = re.compile(r"[+-]?\d{1,9}(?:\.\d{1,9})?(?:e[+-]?\d{1,3})?")

_NAME_ENDS = r"(?![\w-]|\.\w)"
_HOMES = re.compile(r"(?<![\w.])/(?:home|Users)/[^/\s:\"',;]+")
_PATH = re.compile(r"(?<![\w:/.<>~-])(?:~[^\s/:\"',;]*|<user>)?(?:/[^\s/:\"',;()\[\]]+){2,}/?"
                   r"|(?<![\w:/.<>~-])~[^\s/:\"',;]*/[^\s/:\"',;()\[\]]+/?")
_EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]++@[\w-]++\.[\w.-]+")
_GPU_ID = re.compile(r"\b(?:GPU|MIG)-[0-9a-fA-F][0-9a-fA-F-]{7,}(?:/\d+/\d+)?")

_HOST_LINE = re.compile(r'^(\s*"host_name":\s*)"[^"]*"')
_SIGNS = tuple(sign.encode() for sign in re.findall(r"\S+", r"""
    host_name hf_ ghp_ gho_ ghs_ ghu_ ghr_ github_pat_ glpat- glrt- glft- gldt- glsoat- glcbt- glptt- glagent- glimt-
    glffct- sk- sk_ rk_ pk_ akia asia xox xapp- aiza ya29. npm_ pypi- nvapi- r8_ dop_v1_ lsv2_ wandb_v sg. eyj ://
    -----begin webhook hooks.slack bearer basic passw passphrase passcode secret token credential cookie apikey api_key
    api-key auth signature pwd creds jwt sessionid totp key= key: key" key\ keys= keys: keys" keys\ sig= sig: sig" sig\
    sas= sas: sas" sas\ dsn= dsn: dsn" dsn\ otp= otp: otp" otp\ pw= pw: pw" pw\ pass= pass: pass" pass\
"""))
"""Substrings of secrets, in lower case: only parts of a trace with one of them are searched for secrets."""
_DIGIT_OR_END = re.compile(rb"[\d\r\n]")

_FIXED = {"run_id", "status", "started", "ended", "commit", "fingerprint", "schema_version", "suite_digest", "mode",
          "precision", "phase"}  # fmt: skip
_NEVER_A_NAME = _FIXED - {"run_id"} | {"device"}
_IDENTIFIERS = {"case", "workload", "variant", "brick"}
"""Keys by which tables are matched: only values in the format of a secret are replaced in them."""
_ORDINARY_HOSTS = {"", "localhost", "cpu", "cuda", "gpu", "train", "infer"}
_ARGUMENTS = {"command_line", "arguments"}
_LONGEST_VALUE = 200

SPEED_VARIABLES = frozenset(re.findall(r"\S+", """
    OMP_NUM_THREADS OMP_DYNAMIC OMP_PROC_BIND OMP_PLACES OMP_SCHEDULE OMP_WAIT_POLICY OMP_THREAD_LIMIT OMP_NESTED
    OMP_MAX_ACTIVE_LEVELS OMP_STACKSIZE OMP_CANCELLATION
    MKL_NUM_THREADS MKL_DOMAIN_NUM_THREADS MKL_DYNAMIC MKL_ENABLE_INSTRUCTIONS MKL_CBWR MKL_DEBUG_CPU_TYPE
    MKL_THREADING_LAYER MKL_INTERFACE_LAYER MKL_NUM_STRIPES MKL_DISABLE_FAST_MM MKL_FAST_MEMORY_LIMIT MKL_VERBOSE
    KMP_AFFINITY KMP_BLOCKTIME KMP_HW_SUBSET KMP_LIBRARY KMP_STACKSIZE KMP_TPAUSE KMP_FORCE_REDUCTION KMP_DYNAMIC_MODE
    KMP_USER_LEVEL_MWAIT KMP_PLACE_THREADS KMP_ALL_THREADS KMP_INIT_AT_FORK KMP_ADAPTIVE_LOCK_PROPS
    GOMP_CPU_AFFINITY GOMP_SPINCOUNT GOMP_STACKSIZE
    OPENBLAS_NUM_THREADS ATEN_CPU_CAPABILITY ONEDNN_MAX_CPU_ISA DNNL_MAX_CPU_ISA ONEDNN_DEFAULT_FPMATH_MODE
    ONEDNN_PRIMITIVE_CACHE_CAPACITY
    PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF PYTORCH_NO_CUDA_MEMORY_CACHING PYTORCH_JIT
    PYTORCH_NVML_BASED_CUDA_CHECK PYTORCH_TUNABLEOP_ENABLED PYTORCH_TUNABLEOP_TUNING PYTORCH_ENABLE_MPS_FALLBACK
    PYTORCH_MPS_HIGH_WATERMARK_RATIO PYTORCH_MPS_LOW_WATERMARK_RATIO PYTORCH_MPS_FAST_MATH PYTORCH_MPS_PREFER_METAL
    TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_BLAS_PREFER_CUBLASLT TORCH_BLAS_PREFER_HIPBLASLT TORCH_COMPILE_DISABLE
    TORCH_CUDNN_V8_API_DISABLED TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT TORCH_LINALG_PREFER_CUSOLVER
    TORCH_LINALG_PREFER_MAGMA TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_BLOCKING_WAIT TORCH_NCCL_ENABLE_TIMING
    TORCH_NCCL_HIGH_PRIORITY TORCH_SHOW_DISPATCH_TRACE TORCH_USE_CUDA_DSA
    TORCHDYNAMO_DISABLE TORCHINDUCTOR_MAX_AUTOTUNE TORCHINDUCTOR_FREEZING TORCHINDUCTOR_CPP_WRAPPER
    TORCHINDUCTOR_COORDINATE_DESCENT_TUNING TORCHINDUCTOR_COMPILE_THREADS TORCHINDUCTOR_FX_GRAPH_CACHE
    CUBLAS_WORKSPACE_CONFIG CUBLASLT_WORKSPACE_SIZE CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING
    CUDA_DEVICE_MAX_CONNECTIONS CUDA_MODULE_LOADING CUDA_CACHE_DISABLE
    NVIDIA_TF32_OVERRIDE NVIDIA_VISIBLE_DEVICES
    NCCL_ALGO NCCL_PROTO NCCL_BUFFSIZE NCCL_NTHREADS NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS NCCL_P2P_DISABLE
    NCCL_SHM_DISABLE NCCL_IB_DISABLE
    MALLOC_ARENA_MAX MALLOC_ARENA_TEST MALLOC_MMAP_MAX_ MALLOC_MMAP_THRESHOLD_ MALLOC_TRIM_THRESHOLD_ MALLOC_TOP_PAD_
    MALLOC_PERTURB_ MALLOC_CHECK_ MALLOC_CONF GLIBC_TUNABLES LD_PRELOAD
"""))
"""Environment variables that affect speed, as documented by their libraries: a record has no others."""


def redacted(facts: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest, or a note of an event log, without secrets and names of the user.

    If the manifest has `arguments_kept`, its command line and the program's arguments are unchanged.
    """
    return redacted_notes([facts])[0]


def redacted_notes(notes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return notes as `redacted` does; the environment, which takes longest to read, is read once."""
    redactor = _here()
    # The top-level names are charact's own: none is that of a secret.
    return [{name: redactor.text(value) if isinstance(value, str) and name not in _FIXED | _IDENTIFIERS
             else redactor.facts(value, name, keep_arguments=bool(note.get("arguments_kept")))
             for name, value in note.items()} for note in notes]


def redacted_arguments(arguments: Sequence[str]) -> list[str]:
    """Return a command line without its secrets; paths below the working directory become relative."""
    return _here().arguments(arguments)


def redacted_text(text: str) -> str:
    """Return a text without secrets and names of the user."""
    return _here().text(text)


def redacted_column(name: str, texts: Sequence[str]) -> list[str]:
    """Return texts of a table's column without secrets and names of the user."""
    clean = redacted_identifier if name in _IDENTIFIERS else _here().text
    return [clean(text) for text in texts]


def redacted_identifier(text: str) -> str:
    """Return the name of a case or run without parts in the format of a secret."""
    return _TOKENS.sub(REDACTED, _LOGIN.sub(rf"\1{REDACTED}@", text))


def speed_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that affect speed, with values of bounded length and without secrets."""
    return _redactor(environment, ()).environment(environment)


def redact_chunks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a JSON file of torch.profiler, given as whole lines, without secrets and names of user and host."""
    redactor = _here()
    known = (*(home for home, _ in redactor.homes), *redactor.secrets, redactor.user)
    signs = [*(text.encode("utf-8", "surrogateescape").lower() for text in known if text), *_SIGNS]
    for chunk in chunks:
        if not _has_sign(chunk, signs):  # regular expressions take as long as compression
            yield chunk
            continue
        lines = chunk.decode("utf-8", "surrogateescape").splitlines(keepends=True)
        whole = "".join(_HOST_LINE.sub(rf'\1"{HOST}"', redactor.text(line)) for line in lines)
        yield whole.encode("utf-8", "surrogateescape")


def _has_sign(chunk: bytes, signs: Sequence[bytes]) -> bool:
    """Return whether a part of a trace contains one of the signs, in lower case, of what must be replaced."""
    lower = chunk.lower()
    if any(sign in lower for sign in signs if _DIGIT_OR_END.search(sign)):
        return True
    # Without digits most lines are the same, and few are left to search.
    distinct = b"\n".join(set(lower.translate(None, b"0123456789").splitlines()))
    return any(sign in distinct for sign in signs)


def expanded_path(text: str) -> Path:
    """Return the path that a record names, with the home directory and the user's name restored."""
    whole = text.replace(USER, _user(os.environ)) if USER in text else text
    return Path(os.path.expanduser(whole))


def names_user(path: Path) -> bool:
    """Return whether the last part of a path is the user's name."""
    return bool(path.name) and (path.name == _user(os.environ) or str(path) in dict(_homes(os.environ)))


@functools.lru_cache(maxsize=4096)  # the names in the environment are checked for every note and table
def is_secret_name(name: str) -> bool:
    """Return whether the value of an argument, variable or key with this name is a secret."""
    words = [word.lower() for word in _WORD.findall(name)]
    if len(words) > 1 and set(words) <= _ATTENTION_WORDS:
        return False
    return any(word in _SECRET_WORDS or _SECRET_STEMS.search(word) for word in words) or "apikey" in "".join(words)


def anonymous(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest without data that identifies the machine's owner.

    This removes names of the host and the user, identifiers of GPUs, the commit, mail addresses, the command line, and
    all but the last part of absolute paths.
    """
    return {**_anonymous_facts(redacted(manifest), _host_pattern(manifest)), "anonymous": True}


def anonymous_texts(texts: Sequence[str], column: str, manifest: Mapping[str, Any]) -> list[str]:
    """Return texts of a column of a run's tables, anonymized as by `anonymous`."""
    hosts = _host_pattern(manifest)
    return [_anonymous_text(text, hosts) for text in redacted_column(column, texts)]


def _host_pattern(manifest: Mapping[str, Any]) -> re.Pattern[str] | None:
    """Return a pattern of the record's host names, with and without domain."""
    names = {str(facts["hostname"]) for facts in (manifest, manifest.get("machine") or {}) if facts.get("hostname")}
    every = {part for name in names for part in (name, name.partition(".")[0])} - _ORDINARY_HOSTS
    alternatives = "|".join(map(re.escape, sorted(every, key=len, reverse=True)))
    return re.compile(rf"(?<![\w-])(?:{alternatives})(?![\w-])") if every else None


def _anonymous_facts(value: Any, hosts: re.Pattern[str] | None, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _anonymous_facts(each, hosts, name) for name, each in value.items()
                if name not in ("hostname", "uuid", "git", *_ARGUMENTS)}
    if isinstance(value, list):
        return [_anonymous_facts(each, hosts, key) for each in value]
    return _anonymous_text(value, hosts) if isinstance(value, str) and key not in _NEVER_A_NAME else value


def _anonymous_text(text: str, hosts: re.Pattern[str] | None) -> str:
    text = _EMAIL.sub(REDACTED, _GPU_ID.sub(REDACTED, text))
    text = _PATH.sub(lambda found: f"…/{os.path.basename(found[0].rstrip('/'))}", _HOMES.sub("~", text))
    return hosts.sub(HOST, text) if hosts is not None else text


@dataclass(frozen=True)
class _Redactor:
    """Replaces the home directories, the user name and the secrets that this process knows."""

    homes: tuple[tuple[str, str], ...]
    user: str
    directory: str
    secrets: frozenset[str]
    _known: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    def facts(self, value: Any, key: str = "", *, keep_arguments: bool = False) -> Any:
        if isinstance(value, str):
            if key in _FIXED:
                return value
            if key in _IDENTIFIERS:
                return redacted_identifier(value)
            return REDACTED if is_secret_name(key) and _is_secret_value(key, value) else self.text(value)
        if key in _ARGUMENTS and isinstance(value, (list, tuple)):
            return list(value) if keep_arguments else self.arguments([str(each) for each in value])
        if isinstance(value, dict):
            if key == "environment":
                return self.environment({str(name): str(each) for name, each in value.items()})
            return {self.text(name) if isinstance(name, str) else name:
                    self.facts(each, str(name), keep_arguments=keep_arguments) for name, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.facts(each, key, keep_arguments=keep_arguments) for each in value]
        return value

    def text(self, text: str) -> str:
        if text not in self._known:
            if len(self._known) > 100_000:
                self._known.clear()
            self._known[text] = self._replaced(text)
        return self._known[text]

    def _replaced(self, text: str) -> str:
        if self._secrets_pattern is not None:
            text = self._secrets_pattern.sub(REDACTED, text)
        text = _HEX_TOKEN.sub(REDACTED, redacted_identifier(text))
        if ":" in text or "=" in text:
            text = _without_values(_ASSIGNED, _HEADER.sub(rf"\1\2{REDACTED}", text))
        text = _SCHEME.sub(rf"\1{REDACTED}", text)
        if "-" in text:
            text = _without_values(_OPTION, text)
        for home, replacement in self.homes:
            if home in text:
                text = re.sub(rf"(?<![\w~]){re.escape(home)}{_NAME_ENDS}", replacement, text)
        if self.user and self.user in text:
            user = re.escape(self.user)
            text = re.sub(rf"(?<=[/\\~]){user}{_NAME_ENDS}|(?<![\w<]){user}(?=@)", USER, text)
        return text

    def arguments(self, arguments: Sequence[str]) -> list[str]:
        below = re.compile(rf"(^|=){re.escape(self.directory)}/" if self.directory.strip("/") else "(?!)")
        return [self.text(below.sub(r"\1", start)) if value is None else f"{start}{REDACTED}"
                for start, value in _parted(arguments)]

    @cached_property
    def _secrets_pattern(self) -> re.Pattern[str] | None:
        # A short secret may be part of an ordinary word.
        parts = [re.escape(secret) if len(secret) >= 12 else rf"(?<!\w){re.escape(secret)}(?!\w)"
                 for secret in sorted(self.secrets, key=len, reverse=True)]
        return re.compile("|".join(parts)) if parts else None

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        values = {}
        for name in sorted(SPEED_VARIABLES & variables.keys()):
            value = variables[name]
            if name == "LD_PRELOAD":
                value = ":".join(os.path.basename(library) for library in re.split(r"[:\s]+", value) if library)
            value = self.text(value)
            values[name] = value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE - 1]}…"
        return values

_latest: list[_Redactor] = []


def _here() -> _Redactor:
    """Return the redactor of this process, with the secrets in its environment and arguments."""
    redactor = _redactor(os.environ, (getattr(sys, "orig_argv", ())[1:], getattr(sys, "argv", ())[1:]))
    if redactor not in _latest:
        _latest[:] = [redactor]
    return _latest[0]  # has a cache of many texts


def _redactor(environment: Mapping[str, str], command_lines: Sequence[Sequence[str]]) -> _Redactor:
    """Return the redactor of an environment and of command lines."""
    secrets = {value for name, value in environment.items()
               if name not in _NO_SECRET_VARIABLES | SPEED_VARIABLES and is_secret_name(name)
               and _is_secret_value(name, value)}
    for arguments in command_lines:
        texts = [argument for argument in arguments if isinstance(argument, str)]
        secrets.update(value for _, value in _parted(texts) if value is not None)
        secrets.update(found[1] for argument in texts for found in _PASSWORD_IN_URL.finditer(argument))
    directory = ""
    with contextlib.suppress(OSError):
        directory = os.getcwd()
    # Only secrets that can be replaced everywhere without matching ordinary words.
    distinct = frozenset(secret for secret in secrets if len(secret) >= (10 if secret.isalpha() else 6)
                         and not _NUMBER.fullmatch(secret) and secret != REDACTED)
    return _Redactor(_homes(environment), _user(environment), directory, distinct)


def _homes(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the home directories of this user with their replacements, the longest first."""
    homes: dict[str, str] = {}
    if account_home := _account()[1]:
        homes[account_home] = f"~{USER}"
    home = environment.get("HOME", "").rstrip("/")
    homes |= {os.path.realpath(home): "~", home: "~"} if home.startswith("/") else {}
    return tuple(sorted(((path.rstrip("/"), text) for path, text in homes.items() if path.strip("/")),
                        key=lambda item: -len(item[0])))


def _user(environment: Mapping[str, str]) -> str:
    """Return the user's name from the environment, else from the system; empty if neither has it."""
    return environment.get("USER") or environment.get("LOGNAME") or _account()[0]


def _account() -> tuple[str, str]:
    """Return name and home directory of the process's account; empty if unknown."""
    try:
        import pwd  # Unix only
    except ImportError:
        return "", ""
    try:
        account = pwd.getpwuid(os.getuid())
    except KeyError:
        return "", ""
    return account.pw_name, account.pw_dir


def _parted(arguments: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield each argument, split into a part to record and the secret that follows it, or None."""
    name: str | None = None
    for argument in arguments:
        is_option = argument.startswith("--") or (argument.startswith("-") and len(argument) == 2)
        if name is not None and not is_option:
            yield ("", argument) if _is_secret_value(name, argument) else (argument, None)
            name = name if name.endswith("s") else None  # an option with a plural name may take several values
            continue
        name = None
        named = _NAMED_ARGUMENT.fullmatch(argument)
        if named is not None and is_secret_name(named["name"]):
            secret = _is_secret_value(named["name"], named["value"])
            yield (f"{named['name']}=", named["value"]) if secret else (argument, None)
            continue
        if argument.startswith("-") and named is None and is_secret_name(argument) and " " not in argument:
            name = argument
        yield argument, None


def _is_secret_value(name: str, value: str) -> bool:
    """Return whether a value can be a secret under such a name: not if it is a switch, or a number of something."""
    if value.lower() in _NO_SECRETS:
        return False
    counts = any(word.lower() in _COUNT_WORDS for word in _WORD.findall(name))
    return not (counts and _NUMBER.fullmatch(value.strip("\"'")))


def _without_values(pattern: re.Pattern[str], text: str) -> str:
    """Return a text without the values that a pattern finds under the name of a secret."""
    parts, begin, place = [], 0, 0
    while (found := pattern.search(text, place)) is not None:
        if not _names_a_secret(found):
            place = found.start("value")  # the value may contain another name
            continue
        quote = re.match(r"\\?[\"']", found["value"])
        around = "" if quote is None else quote[0]
        parts += [text[begin:found.start("value")], around, REDACTED, around]
        begin = place = found.end()
    return "".join([*parts, text[begin:]])


def _names_a_secret(found: re.Match[str]) -> bool:
    name, between, value = found["name"], found["between"], found["value"]
    words = [word.lower() for word in _WORD.findall(name)]
    if ":" in between and not re.search("[\"']", between) and (
            words[-1:] in (["error"], ["exception"]) or (len(words) == 1 and words[0] in _AMBIGUOUS)):
        return False
    bare = value.strip("\\\"'")
    if ":" in between and name.endswith(".py") and _NUMBER.match(bare):
        return False  # a line of a source file
    if len(words) == 1 and words[0] in _AMBIGUOUS and _NUMBER.match(bare):
        return False
    return value[0] not in "=:" and is_secret_name(name) and bare != REDACTED and _is_secret_value(name, bare)
