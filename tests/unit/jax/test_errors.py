"""Errors about arguments, and public functions.

- An error begins with the name of the outermost public function; inside a function that the caller passes (a bias),
  with the public function that is called there.
- Errors that a caller's function raises pass untouched. An error about an argument shows one frame of the package.
- Public functions look like ordinary ones, pickle, and compile no program to convert NumPy's arrays.
"""

import inspect
import pathlib
import pickle
import traceback

import jax
import numpy as np
import pytest
from flax import nnx

import posenc_jax as pe
from helpers.programs import COMPILED
from posenc_jax import hf, kernels, linen, plot
from posenc_jax import nnx as nnx_modules

X = np.ones((2, 5, 3, 8), np.float32)  # batch, seq, heads, head_dim


def attend(bias):
    return pe.attention(X, X, X, bias=bias)


def positional(bias=None, rotation=8):
    return nnx_modules.positional_attention(rotation=rotation, bias=bias)(X, X, X)


# The name


# what raises → a call that raises, and the beginning of its message
NAMED = {
    "a function that another calls": (lambda: pe.sinusoidal(0, -1), r"sinusoidal: frequencies \(a width\) must be at"),
    "under jit": (lambda: jax.jit(lambda x: pe.rotary(x, layout="x", head_axis=-2))(X), "rotary: layout must be one"),
    "in a derivative": (lambda: jax.grad(lambda x: pe.shift(x, 1, 6).sum())(X), "shift: frequencies of width 6 must"),
    "a class": (lambda: pe.Frequencies((1,), 3), "Frequencies: dim must be 2 or 1 for 1 pairs"),
    "a method": (lambda: pe.geometric(4).with_angular([1.0]), "Frequencies.with_angular: angular must hold 2 numbers"),
    "a bias of attention": (lambda: attend(lambda i, j: pe.alibi(i, j, 0)), "alibi: heads must be at least 1"),
    "what a bias returns": (lambda: attend(lambda i, j: pe.alibi(i, j, 2)), r"attention: bias of shape \(2, 5, 5\)"),
    "a rotation in a module": (lambda: positional(rotation=16), "positional_attention: frequencies of width 16 must"),
    "a module of NNX": (lambda: nnx_modules.RotaryEncoding(7, head_axis=-2), "RotaryEncoding: frequencies must"),
    "a module of Linen": (lambda: linen.LearnedEncoding(0, 8), "LearnedEncoding: num_embeddings must be at"),
    "a figure": (lambda: plot.spectrum({"a": pe.axial(8, 0)}), "axial: num_axes must be at least 1"),
    **{
        f"{name} where frequencies hold it": (
            lambda name=name: pe.rotary(X, **{name: 1e4}, head_axis=-2),
            rf"rotary: {name} must be given as frequencies=geometric\(width, 10000.0\)",
        )
        for name in ("base", "theta", "rope_theta")
    },
}


@pytest.mark.parametrize("name", NAMED)
def test_the_outermost_public_function_is_named(name):
    call, message = NAMED[name]
    with pytest.raises((TypeError, ValueError), match=f"^{message}") as error:
        call()
    assert type(error.value) in (TypeError, ValueError)


# Plain errors


class CallersError(ValueError):
    """An error that the library does not know."""


def raising(error):
    def f(*args, **kwargs):
        raise error

    return f


class Config:
    """A config whose `to_dict` fails."""

    def __init__(self, error):
        self.to_dict = raising(error)


# Public functions that call a function or method of the caller's, which raises the error
CALLS = {
    "attention": lambda error: attend(raising(error)),
    "positional_attention": lambda error: positional(raising(error)),
    "LearnedEncoding, NNX": lambda error: jax.eval_shape(
        lambda: nnx_modules.LearnedEncoding(4, 8, embedding_init=raising(error), rngs=nnx.Rngs(0))
    ),
    "LearnedEncoding, Linen": lambda error: jax.eval_shape(
        lambda: linen.LearnedEncoding(4, 8, embedding_init=raising(error)).init(jax.random.key(0), X[0, 0])
    ),
    "rotary_from_config": lambda error: hf.rotary_from_config(Config(error)),
}


@pytest.mark.parametrize("make", [ValueError, CallersError])
@pytest.mark.parametrize("name", CALLS)
def test_errors_of_the_callers_functions_pass_untouched(name, make):
    error = make("of the caller")
    with pytest.raises(make) as found:
        CALLS[name](error)
    assert found.value is error and error.args == ("of the caller",)
    assert error.__cause__ is None and error.__context__ is None


# Public functions


PUBLIC = {name: getattr(pe, name) for name in pe.__all__} | {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (hf, kernels, nnx_modules, linen, plot)
    for name in module.__all__
}
FUNCTIONS = {name: f for name, f in PUBLIC.items() if not inspect.isclass(f)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_looks_like_an_ordinary_one(name):
    f = FUNCTIONS[name]
    module, _, plain = name.rpartition(".")
    assert f.__module__ == (module or "posenc_jax")
    assert f.__name__ == f.__qualname__ == plain
    assert inspect.isfunction(f) and inspect.isfunction(f.__wrapped__)
    assert f.__doc__ and f.__doc__ == f.__wrapped__.__doc__
    assert inspect.signature(f) == inspect.signature(f.__wrapped__)
    assert f"def {plain}(" in inspect.getsource(f)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_object_pickles_to_itself(name):
    assert pickle.loads(pickle.dumps(PUBLIC[name])) is PUBLIC[name]


@pytest.mark.parametrize(
    "call",
    [
        lambda: pe.rotary(np.ones((13, 7), np.float32), np.arange(13), np.ones(3, np.float32), head_axis=None),
        lambda: pe.learned(np.arange(7), np.ones((23, 3), np.float32)),
        lambda: pe.alibi(np.arange(29), np.arange(31), np.ones(5, np.float32)),
    ],
)
def test_numpy_arrays_are_converted_by_no_program_of_their_own(call):
    """No other test has these shapes, so the program of the call is compiled here, and must be the only one."""
    compiled = []
    listen = lambda event, seconds, **details: event == COMPILED and compiled.append(details)  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        call()
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert len(compiled) == 1, compiled  # the program of the call itself


def test_an_error_shows_the_caller_and_one_frame_of_the_package():
    """Frames of the package's checks are hidden, under jit too. An error in a caller's function keeps all frames."""
    wrong = lambda x: pe.rotary(x, np.arange(3), head_axis=-2)  # noqa: E731
    folder = pathlib.Path(pe.__file__).parent

    def own(i, j):
        raise ValueError("mine")

    def frames(call):
        """The names of the package's functions in the traceback of an error, and of the last function of all."""
        with pytest.raises(ValueError) as caught:
            call(X)
        found = traceback.extract_tb(caught.value.__traceback__)
        return [frame.name for frame in found if folder in pathlib.Path(frame.filename).parents], found[-1].name

    assert jax.config.jax_traceback_filtering == "off" and len(frames(wrong)[0]) > 4  # as `conftest.py` sets it
    jax.config.update("jax_traceback_filtering", "auto")
    try:
        for call in (wrong, jax.jit(wrong)):
            assert frames(call) == (["named"], "named")  # the wrapper of public functions that adds their name
        of_package, last = frames(lambda x: pe.attention(x, x, x, bias=own))
        assert last == "own" and len(of_package) > 1
        wrong_bias = lambda i, j: pe.alibi(i, j, -1)  # noqa: E731
        with pytest.raises(ValueError, match="heads must be at least 1") as caught:
            pe.attention(X, X, X, bias=wrong_bias)
        assert wrong_bias.__code__ in [frame.f_code for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    finally:
        jax.config.update("jax_traceback_filtering", "off")
