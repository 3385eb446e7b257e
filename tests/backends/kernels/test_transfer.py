import numpy as np
import torch

from backends.kernels.transfer import Download, upload

CPU = torch.device("cpu")


def test_what_is_uploaded_keeps_its_type() -> None:
    assert upload([1, 2], CPU, np.int64).dtype == torch.int64
    assert upload([], CPU, np.int32).dtype == torch.int32
    assert upload(np.array([0.5], np.float32), CPU).tolist() == [0.5]


def test_a_download_on_the_host_is_there_at_once() -> None:
    assert Download(torch.tensor([3, 4])).wait().tolist() == [3, 4]
