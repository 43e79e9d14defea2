"""A member whose workload sets NCCL otherwise than the others is not compared with them."""

from __future__ import annotations

from dataclasses import replace

from check_nccl_allreduce.tuning import digest, short
from worlds import sick


def test_a_slow_node_is_blamed_where_all_members_set_the_same() -> None:
    one = replace(sick(4), variables=dict.fromkeys(range(4), "aa"))
    assert one.run().blamed == {1: "NODE_SLOW"}


def test_a_member_that_alone_sets_a_variable_blames_no_node() -> None:
    verdict = replace(sick(4), variables={1: "aa"}).run()
    assert verdict.code == "LOW_BANDWIDTH"
    assert verdict.blamed == {}


def test_a_member_whose_topology_file_has_another_content_blames_no_node() -> None:
    contents = {0: "aa", 1: "bb", 2: "aa", 3: "aa"}
    files = dict.fromkeys(range(4), "/same.xml")
    assert replace(sick(4), files=files, contents=contents).run().blamed == {}


def test_variables_of_nccl_and_its_plugins_count_and_those_of_others_do_not() -> None:
    assert digest({"PATH": "/bin", "RANK": "3"}, "") == ""
    several = {
        digest({name: "1"}, "") for name in ("NCCL_IB_HCA", "NCCL_IB_SL", "UCX_TLS", "FI_PROVIDER")
    }
    assert len(several) == 4
    assert "" not in several


def test_one_setting_has_one_digest_in_whatever_order() -> None:
    forth, back = {"NCCL_A": "1", "NCCL_B": "2"}, {"NCCL_B": "2", "NCCL_A": "1"}
    assert digest(forth, "") == digest(back, "")
    assert digest({"NCCL_A": "1"}, "") != digest({"NCCL_A": "2"}, "")


def test_the_interface_that_the_check_chose_is_not_the_workloads() -> None:
    assert digest({"NCCL_SOCKET_IFNAME": "=eth0"}, "=eth0") == digest(
        {"NCCL_SOCKET_IFNAME": "=ens5"}, "=ens5"
    )
    assert digest({"NCCL_SOCKET_IFNAME": "eth1"}, "") != ""


def test_topology_files_are_compared_by_content() -> None:
    assert digest({"NCCL_TOPO_FILE": "/a"}, "") == digest({"NCCL_TOPO_FILE": "/b"}, "")
    assert short(b"<system/>") != short(b"<system version='1'/>")
    assert short(b"") == ""
