"""Dense blocks beyond the memory bound are refused with their size and another estimator."""

import pytest

from hessfig.config.enums import DType, Method
from hessfig.config.schema import Config
from hessfig.config.science import EstimatorConfig, ModelConfig
from hessfig.errors import UserError
from hessfig.sweep.variant import Variant


def check(config):
    Variant("", config).check()


DENSE = EstimatorConfig(method=Method.dense)


def test_the_papers_size_is_too_large_for_dense_blocks():
    with pytest.raises(
        UserError, match=r"column of blocks of W_V would take 8\.6 GB"
    ) as caught:
        check(Config(estimator=DENSE))
    assert caught.value.got == "8.6 GB"
    assert caught.value.allowed == "at most 8 GB"
    assert "estimator=auto" in caught.value.remedy


def test_the_blocks_of_a_column_are_held_together():
    check(Config(estimator=DENSE, dtype=DType.float32))
    with pytest.raises(UserError, match=r"column of blocks of W_V would take 8\.6 GB"):
        check(
            Config(estimator=DENSE, dtype=DType.float32, blocks=["W_V", ["W_Q", "W_V"]])
        )


def test_the_whole_hessian_of_a_large_model_is_not_kept():
    check(Config(quantities=["hessian"], model=ModelConfig(d_model=16)))
    with pytest.raises(
        UserError,
        match=r"quantities=\[hessian\]: the Hessian of 52172 parameters would take 87\.1 GB",
    ) as caught:
        check(Config(quantities=["hessian"], model=ModelConfig(d_model=64)))
    assert "estimator=auto" in caught.value.remedy
