"""Passes are held to what they say."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from compiler_graphs import GraphOf

from openhtp.compiler import pass_base as checks
from openhtp.compiler.driver import compile_graph, portable_program
from openhtp.compiler.pass_base import Pass, run_passes
from openhtp.core.errors import InternalError, InvalidArgument
from openhtp.program.htp_program import HtpProgram, Kernel, Step
from openhtp.program.qnn_program import QnnProgram


def programs() -> tuple[QnnProgram, HtpProgram]:
    """x -> Tanh -> t -> Sigmoid -> y"""
    graph = GraphOf()
    graph.node("Sigmoid", [graph.node("Tanh", [graph.input("x")], "t")], "y")
    finished = graph.finish("y")
    return portable_program(finished), compile_graph(finished, "SM8650")


def turn_around(program: QnnProgram) -> QnnProgram:
    return dataclasses.replace(program, nodes=program.nodes[::-1])


def complain(program: QnnProgram) -> QnnProgram:
    raise InvalidArgument("no")


def test_a_pass_that_breaks_a_program_is_named() -> None:
    program, _ = programs()
    with pytest.raises(InternalError, match="'turn_around' did not ensure nodes_in_order: node 'y' reads 't'"):
        run_passes(program, [Pass(turn_around, ensures=(checks.nodes_in_order,))])


def test_a_pass_that_is_given_a_broken_program_is_named() -> None:
    program, _ = programs()
    with pytest.raises(InternalError, match="pass 'complain' requires nodes_in_order: node 'y' reads 't'"):
        run_passes(program, [Pass(turn_around), Pass(complain, requires=(checks.nodes_in_order,))])


def test_an_error_inside_names_its_pass() -> None:
    program, _ = programs()
    with pytest.raises(InvalidArgument, match="pass 'complain'"):
        run_passes(program, [Pass(complain)])


def test_what_compilers_make_passes_every_check() -> None:
    portable, program = programs()
    for check in (checks.nodes_in_order, checks.statics_have_data, checks.nothing_unused):
        assert check(portable) is None
    for each in (
        checks.kernels_in_order,
        checks.kernels_of_one_op,
        checks.kernels_are_chains,
        checks.sources_once,
        checks.units_are_busy,
        checks.steps_cover_kernels,
        checks.buffers_hold_what_is_read,
    ):
        assert each(program) is None


def test_every_check_can_fail() -> None:
    portable, program = programs()
    first, second = program.kernels
    change = dataclasses.replace
    broken = {
        checks.kernels_in_order: change(program, kernels=(second, first)),
        checks.kernels_of_one_op: change(program, kernels=(Kernel((*first.nodes, *second.nodes)),)),
        checks.kernels_are_chains: change(program, kernels=(Kernel((*second.nodes, *first.nodes)),)),
        checks.sources_once: change(program, kernels=(first, first)),
        checks.units_are_busy: change(program, kernels=(Kernel(first.nodes),)),
        checks.steps_cover_kernels: change(program, steps=(Step(0, 1),)),
        checks.buffers_hold_what_is_read: change(program, buffers=program.buffers[:1]),
    }
    for check, wrong in broken.items():
        assert check(wrong) is not None, check.__name__
    without_y = {name: spec for name, spec in portable.tensors.items() if name != "y"}
    assert checks.nothing_unused(change(portable, tensors=without_y)) is not None
    assert checks.statics_have_data(change(portable, statics={"x": np.zeros(1)})) is not None
    assert checks.nodes_in_order(turn_around(portable)) is not None
