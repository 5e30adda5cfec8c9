"""The vocabulary."""

import pytest

from hessfig.terms import Block, Matrix, Part


def test_labels_are_mathtext():
    assert Matrix.W_Q.label == r"W_{\mathrm{Q}}"
    assert Matrix.W_pos.label == r"W_{\mathrm{pos}}"
    assert Matrix.W.label == "W"


def test_parts_have_words():
    assert [part.label for part in (Part.H, Part.H_o, Part.H_f)] == [
        "full Hessian",
        "outer-product Hessian",
        "functional Hessian",
    ]


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [("W_E", False), ("W_pos", False), ("W_U", False), ("W_Q", True), ("W", True)],
)
def test_embeddings_and_unembedding_have_no_layer(matrix, expected):
    assert Matrix(matrix).has_layer is expected


def test_a_block_names_itself():
    block = Block(2, Matrix.W_Q, Matrix.W_V)
    assert str(block) == "(W_Q, W_V) of layer 2"
    assert not block.is_diagonal
    assert Block(1, Matrix.W_Q, Matrix.W_Q).is_diagonal


def test_values_are_what_tables_hold():
    assert [str(part) for part in Part] == ["H_o", "H_f", "H", "H_oT", "H_fT"]
    assert f"{Matrix.W_in}" == "W_in"
