"""Small schematics by hand."""

from __future__ import annotations

from openhtp.records.schematic import INPUT, OUTPUT, SYSTEM, ChipEngine, HtpOp, OpRole, QnnOp, Region, Schematic

NODES = (
    QnnOp(SYSTEM, "", "SystemService"),
    QnnOp(INPUT, "Input", "Input"),
    QnnOp(OUTPUT, "Output", "Output"),
    QnnOp(4, "conv", "Conv2d", ("/conv",)),
    QnnOp(5, "sub", "ElementWiseSubtract", ("/sub",)),
    QnnOp(6, "relu", "Relu", ("/relu",)),
)


def op(serial, owner, engine, start, cycles, **more):
    role = more.pop("role", OpRole.READ if engine == "DMA" else OpRole.COMPUTE)
    return HtpOp(
        serial=serial,
        name=more.pop("name", f"op{serial}"),
        owner=owner,
        engine=ChipEngine(engine),
        role=role,
        start=start,
        cycles=cycles,
        **more,
    )


def schematic(*ops, regions=(), cores=1, nodes=NODES, **more):
    return Schematic(
        graph="g",
        soc="SM8650",
        clock_hz=1_000_000_000,
        launch_cycles=100,
        cores=cores,
        hvx_threads=2,
        vtcm_bytes=8 << 20,
        nodes=nodes,
        ops=ops,
        regions=regions,
        **more,
    )


# The conv's weights are fetched, it runs with the next fetch beside it, then two vector threads subtract.
SMALL = schematic(
    op(1, 4, "DMA", 0, 50, dram_read=500, vtcm_write=500, name="DramToTcm"),
    op(
        2,
        4,
        "HMX",
        50,
        100,
        inputs=(1 << 32 | 4,),
        vtcm_read=500,
        vtcm_write=100,
        dims=(1, 8, 8, 4),
        dtype="UFIXED8",
    ),
    op(3, 5, "DMA", 80, 40, dram_read=400, vtcm_write=400, name="DramToTcm"),
    op(4, 5, "HVX", 160, 60, inputs=(2 << 32 | 4, 3 << 32 | 5), vtcm_read=100, vtcm_write=50, thread=0),
    op(5, 5, "HVX", 160, 40, inputs=(2 << 32 | 4, 3 << 32 | 5), vtcm_read=100, vtcm_write=50, thread=1),
    op(6, 3, "DMA", 220, 30, role=OpRole.WRITE, vtcm_read=100, dram_write=100, name="TcmToDram"),
    op(7, 4, "", 0, 0, role=OpRole.CONSTANT, name="$Const", dims=(3, 3, 4, 4)),
    regions=(Region("w", 0, 0, 500, 0, 150), Region("y", 0, 500, 100, 50, 220)),
)
