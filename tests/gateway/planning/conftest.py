"""Shapes to plan for."""

import pytest

from backends.models.config import DecoderConfig
from gateway.planning.subject import subject


@pytest.fixture
def llama_70b() -> DecoderConfig:
    return subject("llama-2-70b").config


@pytest.fixture
def llama_7b() -> DecoderConfig:
    return subject("llama-2-7b").config
