"""Addresses come from the name a value is stored under, or from the place of the call, and from the visit count."""

import functools
import pickle
import sys
import textwrap
import threading

import jax
import numpyro.handlers as handlers
import pytest

from anabranch.addresses import derive, execution
from anabranch.errors import UnnamedSite


def site(kind="sample"):
    """Stands for a statement such as `sample`: returns the address that its caller's line gets."""
    return derive(kind, sys._getframe(1))


def addresses(program, *args):
    with execution(program):
        return program(*args)


def helper():
    inner = site()
    return inner


def written(source, name="program"):
    """A function compiled from source, for tests that move code around."""
    namespace = {"site": site}
    exec(compile(textwrap.dedent(source), "written.py", "exec"), namespace)
    return namespace[name]


def test_name_of_the_variable():
    def program():
        mu = site()
        sigma: str = site()
        return mu, sigma

    assert addresses(program) == ("mu", "sigma")


def test_same_variable_twice():
    def program(flip):
        if flip:
            mu = site()
        else:
            mu = site()
        first = mu
        mu = site()
        return first, mu

    assert addresses(program, True) == ("mu", "mu#3")
    assert addresses(program, False) == ("mu#2", "mu#3")


def test_visits_are_counted_per_label():
    def program():
        out = []
        for _ in range(3):
            step = site()
            out.append(step)
        last = site()
        return [*out, last]

    assert addresses(program) == ["step", "step[1]", "step[2]", "last"]


def test_cell_and_global_variables():
    def program():
        shared = site()
        return (lambda: shared)()

    assert addresses(program) == "shared"
    source = """
    def program():
        global stored
        stored = site()
        return stored
    """
    assert addresses(written(source)) == "stored"


def test_place_of_the_call_where_nothing_is_stored():
    program = written(
        """
        def program():
            xs = []
            xs.append(site())
            xs.append(site("observe"))
            xs += [site(), site()]
            pair = site(), str(site(
                "factor"))
            return [*xs, *pair, site()]
        """
    )
    assert addresses(program) == [
        "sample@2:14",
        "observe@3:14",
        "sample@4:11",
        "sample@4:19",
        "sample@5:11",
        "factor@5:23",
        "sample@7:24",
    ]


def test_repeated_condition_of_a_loop_is_one_place():
    # The compiler writes the test of a `while` twice: at the entry and at the end of the body.
    program = written(
        """
        def program():
            out = []
            while len(out) < 3 and out.append(site()) is None:
                pass
            return out
        """
    )
    assert addresses(program) == ["sample@2:38", "sample@2:38[1]", "sample@2:38[2]"]


def test_copied_finally_is_one_call():
    program = written(
        """
        def program(fail):
            try:
                if fail:
                    raise KeyError
            except KeyError:
                pass
            finally:
                closing = site()
            after = closing
            closing = site()
            return after, closing
        """
    )
    assert addresses(program, False) == addresses(program, True) == ("closing", "closing#2")


def test_comprehensions_belong_to_the_function_around_them():
    program = written(
        """
        def program():
            xs = [site() for _ in range(2)]
            ys = [[site() for _ in range(1)] for _ in range(2)]
            zs = {site() for _ in range(1)}
            return xs + sum(ys, []) + sorted(zs)
        """
    )
    assert addresses(program) == ["sample@1:10", "sample@1:10[1]", "sample@2:11", "sample@2:11[1]", "sample@3:10"]


def test_comprehension_in_a_helper_counts_as_the_helper():
    source = """
    def helper():
        return [site() for _ in range(2)]

    def program():
        return helper()
    """
    assert addresses(written(source)) == ["helper.sample@1:12", "helper.sample@1:12[1]"]


def test_lambdas_and_generators_of_the_program_have_no_prefix():
    program = written(
        """
        def program():
            draw = lambda: site()
            twice = lambda: (lambda: site())()
            return [draw(), twice(), *list(site() for _ in range(2))]
        """
    )
    assert addresses(program) == ["sample@1:19", "sample@2:29", "sample@3:35", "sample@3:35[1]"]


def test_called_functions_have_a_prefix():
    def program():
        def local():
            inner = site()
            return inner

        return helper(), helper(), local()

    assert addresses(program) == (
        "helper.inner",
        "helper.inner[1]",
        "test_called_functions_have_a_prefix.program.local.inner",
    )


def test_lambda_of_a_helper_keeps_its_short_name():
    def outer():
        return (lambda: site())()

    def program():
        return outer()

    address = addresses(program)
    assert address.startswith("test_lambda_of_a_helper_keeps_its_short_name.outer.<lambda>.sample@0:")


def test_recursion_counts_visits():
    def program(depth):
        x = site()
        return [x, *program(depth - 1)] if depth else [x]

    assert addresses(program, 2) == ["x", "x[1]", "x[2]"]


def test_calls_through_builtins():
    def program():
        xs = list(map(site, ["sample", "sample"]))
        for y in map(site, ["sample"]):
            xs.append(y)
        return xs

    first, second, third = addresses(program)
    assert (first, second) == ("xs", "xs[1]")
    assert third.startswith("sample@2:")


def test_keyword_and_starred_calls():
    def program():
        a = site(kind="sample")
        b = site(*["sample"])
        c = site(**{"kind": "sample"})
        return a, b, c

    assert addresses(program) == ("a", "b", "c")


def test_many_variables_need_extended_arguments():
    lines = "".join(f"    v{i} = {i}\n" for i in range(300))
    program = written(f"def program():\n{lines}    mu = site()\n    return mu\n")
    assert addresses(program) == "mu"


def test_addresses_survive_code_motion_elsewhere():
    body = """
    def program():
        mu = site()
        xs = [site() for _ in range(2)]
        return [mu, site(), helper(), *xs]
    """
    aid = """
    def helper():
        return site()
    """
    body, aid = textwrap.dedent(body), textwrap.dedent(aid)
    assert addresses(written(aid + body)) == addresses(written(body + "\nunrelated = 1\n\n" + aid))


def test_executions_start_afresh():
    def program():
        mu = site()
        return mu

    assert [addresses(program) for _ in range(3)] == ["mu"] * 3


def test_nested_executions_are_independent():
    def inner():
        x = site()
        return x

    def program():
        out = []
        for _ in range(2):
            x = site()
            out += [x, addresses(inner)]
        return out

    assert addresses(program) == ["x", "x", "x[1]", "x"]


def test_an_execution_ends_with_an_error():
    def failing():
        raise KeyError

    with pytest.raises(KeyError):
        addresses(failing)
    with pytest.raises(UnnamedSite):
        site()


def test_outside_an_execution():
    with pytest.raises(UnnamedSite, match=r"test_addresses\.py:\d+: this observe statement has no name") as caught:
        site("observe")
    assert isinstance(caught.value, LookupError)
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), UnnamedSite)


def test_another_thread_has_no_execution():
    failures = []

    def visit():
        try:
            site()
        except UnnamedSite as error:
            failures.append(error)

    with execution(visit):
        thread = threading.Thread(target=visit)
        thread.start()
        thread.join()
    assert len(failures) == 1


class Model:
    def method(self):
        mu = site()
        return mu

    def __call__(self):
        mu = site()
        return mu


def plain(*args):
    mu = site()
    return mu


@functools.wraps(plain)
def wrapper(*args):
    return plain(*args)


@pytest.mark.parametrize(
    "program",
    [
        plain,
        wrapper,
        Model().method,
        Model(),
        functools.partial(plain, 1),
        functools.partial(functools.partial(wrapper, 1), 2),
        handlers.trace(handlers.seed(plain, 0)),
        handlers.seed(functools.partial(Model().method), 0),
        functools.partial(handlers.seed(Model(), 0)),
        functools.lru_cache(plain),
    ],
)
def test_wrapped_programs_are_recognised(program):
    assert addresses(program) == "mu"


def test_a_compiled_program_is_recognised():
    seen = []

    @jax.jit
    def program(x):
        mu = site()
        seen.append(mu)
        return x

    addresses(program, 1.0)
    assert seen == ["mu"]


def test_a_program_that_is_not_written_in_python():
    with execution(print):
        assert helper() == "helper.inner"


def test_a_lambda_as_the_program():
    program = lambda: [site() for _ in range(2)]  # noqa: E731
    first, second = addresses(program)
    assert first.startswith("sample@0:")
    assert second == first + "[1]"
