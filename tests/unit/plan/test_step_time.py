"""The model of a step's time: what each of its parts is, and how it follows links, devices and layouts."""

import dataclasses

import pytest

from groundup.models.count import training_flops_per_token
from groundup.parallel.activation_checkpointing import Recompute
from groundup.plan.device_table import ACCELERATORS, accelerator
from groundup.plan.kernel_time import Rates, micro_batch_work, rates_of
from groundup.plan.step_time import LINK, NETWORK, Machines, step_time
from groundup.plan.traffic import bytes_sent, data_traffic
from tests.unit.plan.test_traffic import MODEL, step

PRODUCTS_ALONE = Machines(rates=Rates(flops=1e12), peak=1e12, link_gb=100)
H100 = Machines(
    rates=rates_of(accelerator("H100"), "bf16"), peak=accelerator("H100").peak_flops("bf16"), link_gb=450
)


def test_one_device_takes_its_operations_alone():
    found = step_time(step("dp1"), PRODUCTS_ALONE)
    flops = training_flops_per_token(MODEL, 64)
    attention = 6 * 4 * 64 * 64  # a token's, of which kernels do 7 products where the model has 6
    assert found.total == pytest.approx(4 * 2 * 64 * (flops + attention / 6) / 1e12)
    assert found.bubble == found.exposed == found.hidden == found.update == 0
    assert found.mfu == pytest.approx(flops / (flops + attention / 6))
    assert found.tokens_per_second == pytest.approx(4 * 2 * 64 / found.total)


@pytest.mark.parametrize(("name", "share"), [("pp2", 1 / 4), ("pp4", 3 / 4), ("pp2-interleaved", 1 / 8)])
def test_a_pipeline_idles_as_long_as_the_paper_says(name, share):
    machines = dataclasses.replace(PRODUCTS_ALONE, link_gb=1e12, link_latency=0.0)
    found = step_time(step(name), machines)
    assert found.bubble == pytest.approx(found.work.total * share, rel=1e-6)  # (pp - 1) / (m v)


def test_recomputing_all_layers_adds_their_forward_pass():
    plain = micro_batch_work(step("dp1"), H100.rates)
    again = dataclasses.replace(step("dp1"), recompute=Recompute(mode="full"))
    full = micro_batch_work(again, H100.rates)
    assert full.forward == plain.forward
    half = micro_batch_work(dataclasses.replace(again, recompute=Recompute(mode="full", every=2)), H100.rates)
    assert full.backward.total - plain.backward.total == pytest.approx(
        2 * (half.backward.total - plain.backward.total)
    )
    selective = micro_batch_work(
        dataclasses.replace(again, recompute=Recompute(mode="selective")), H100.rates
    )
    assert selective.backward.products == plain.backward.products
    assert plain.backward.passes < selective.backward.passes == full.backward.passes


def test_links_and_latencies_count():
    sent = bytes_sent(step("tp2"))["tensor"]
    calls = 8 * 4 * 4
    near = step_time(step("tp2"), H100).tensor
    assert near == pytest.approx(sent / 1e9 / (LINK * 450) + calls * 25e-6)
    far = step_time(step("tp2"), dataclasses.replace(H100, per_machine=1)).tensor
    assert far == pytest.approx(sent / 1e9 / (NETWORK * 50) + calls * (25e-6 + 12e-6))


@pytest.mark.parametrize(
    ("ranks", "apart", "rate"),
    [
        (8, 1, LINK * 450),  # within a machine
        (64, 1, NETWORK * 8 * 50),  # of all cards of a machine together
        (64, 4, NETWORK * 2 * 50),  # of two ranks in each machine
        (64, 8, NETWORK * 50),
        (2, 64, NETWORK * 50),
    ],
)
def test_a_group_over_machines_sends_by_all_its_cards(ranks, apart, rate):
    machines = dataclasses.replace(H100, link_latency=0.0, network_latency=0.0)
    assert machines.seconds(1e9, 1, ranks, apart) == pytest.approx(1 / rate)
    assert machines.seconds(0.0, 1, ranks, apart) == 0


def test_latency_grows_with_the_machines_that_a_group_spans():
    latencies = [H100.seconds(1e-9, 1, ranks, 1) for ranks in (8, 16, 4096)]
    assert latencies == pytest.approx([25e-6, 37e-6, 25e-6 + 511 * 12e-6])


@pytest.mark.parametrize("name", ["dp2", "dp2-zero1", "dp2-zero2", "dp2-zero3", "dp4-zero3, shard 2"])
def test_data_parallel_bytes_are_hidden_up_to_the_work_of_their_pass(name):
    slow_work = dataclasses.replace(H100, rates=Rates(flops=1e6))
    hidden = step_time(step(name), slow_work)
    taken = hidden.hidden + hidden.data
    assert hidden.data == pytest.approx(taken / 4)  # one layer of four has nothing to hide behind
    no_work = dataclasses.replace(H100, rates=Rates(flops=1e30))
    bare = step_time(step(name), no_work)
    assert bare.data == pytest.approx(taken) and bare.hidden == pytest.approx(0, abs=1e-9)


def test_the_parts_of_data_parallelism_add_up():
    for name in ("dp2", "dp2-zero3", "dp2-pp2-zero3", "dp4-zero1, shard 2"):
        sent = data_traffic(step(name))
        assert sent.total == pytest.approx(bytes_sent(step(name))["data"])
    assert data_traffic(step("dp2")).gathers == 0
    assert data_traffic(step("dp2-zero3")).gathers == data_traffic(step("dp2-zero3")).reductions == 2


def test_small_products_are_slower():
    rates = H100.rates
    large, small = 2 * 8192**3 / rates.product(8192, 8192, 8192), 2 * 256**3 / rates.product(256, 256, 256)
    assert small < 0.1 * large < large < rates.flops < H100.peak


@pytest.mark.parametrize("device", ACCELERATORS, ids=[one.name for one in ACCELERATORS])
def test_every_device_has_what_a_prediction_needs(device):
    assert 0.5 < device.reached < 0.9
    assert 200 < device.memory_gb < 10_000
    assert device.link_gb < device.memory_gb
