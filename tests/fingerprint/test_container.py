"""Containers as facts: the runtime by its marks, the image's digest where somebody says it, ids volatile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rip.fingerprint.probes import container
from rip.fingerprint.probes.context import Context
from rip.fingerprint.process import proc, root_files
from rip.schemas.fingerprint import Section

ID = "0123456789abcdef" * 4
MOUNT = "700 650 8:1 {root} /etc/hostname rw,relatime - ext4 /dev/sda1 rw\n"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root and a /proc of the test's own, for process 7."""
    monkeypatch.setattr(proc, "PROC", tmp_path / "proc")
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "root").mkdir()
    return tmp_path


def read(world: Path, cgroup: str = "0::/\n", mounts: str = "", **environ: str) -> Section:
    (world / "proc" / "7" / "cgroup").write_text(cgroup)
    (world / "proc" / "7" / "mountinfo").write_text(mounts)
    return container.probe(Context(None, environ, pid=7, root=world / "root"))["os"]


@pytest.mark.parametrize(
    ("cgroup", "mounts", "runtime", "has_id"),
    [
        (f"0::/system.slice/docker-{ID}.scope\n", "", "docker", True),
        (f"5:cpu:/docker/{ID}\n0::/\n", "", "docker", True),
        (f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope\n", "", "containerd", True),
        (f"0::/kubepods/burstable/pod1/crio-{ID}.scope\n", "", "cri-o", True),
        (f"0::/machine.slice/libpod-{ID}.scope/container\n", "", "podman", True),
        ("0::/\n", MOUNT.format(root=f"/var/lib/docker/containers/{ID}/hostname"), "docker", True),
        (
            "0::/\n",
            MOUNT.format(root=f"/var/lib/containerd/io.containerd.grpc.v1.cri/sandboxes/{ID}/hostname"),
            "containerd",
            True,
        ),
        ("0::/lxc/box\n", "", "lxc", False),
        ("0::/kubepods/pod1/abc\n", "", "kubernetes", False),
        ("0::/system.slice/docker.service\n", "", None, False),
        (
            "0::/user.slice/user-1000.slice/session-2.scope\n",
            "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n",
            None,
            False,
        ),
        ("", "", None, False),
    ],
)
def test_control_groups_and_mounts_name_the_runtime(
    world: Path, cgroup: str, mounts: str, runtime: str | None, has_id: bool
) -> None:
    found = read(world, cgroup, mounts)
    assert found.facts["container"].value == runtime
    assert ("container_id" in found.volatile) == has_id
    assert not has_id or found.volatile["container_id"].value == ID


@pytest.mark.parametrize(
    ("mark", "runtime"),
    [("/.dockerenv", "docker"), ("/run/.containerenv", "podman"), ("/.singularity.d", "apptainer")],
)
def test_marks_in_the_root_of_the_process_name_the_runtime(world: Path, mark: str, runtime: str) -> None:
    path = world / "root" / mark.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    assert read(world).facts["container"].value == runtime


def test_the_service_managers_word_is_taken_if_it_is_one(world: Path) -> None:
    (world / "root" / "run" / "systemd").mkdir(parents=True)
    said = world / "root" / "run" / "systemd" / "container"
    said.write_text("systemd-nspawn\n")
    assert read(world).facts["container"].value == "systemd-nspawn"
    said.write_text("a\x1b[2J b\n")
    assert read(world).facts["container"].unavailable == "no mark of a container was found"


def test_kubernetes_is_told_without_reading_its_secrets(world: Path) -> None:
    assert read(world).facts["kubernetes"].value is False
    assert read(world, "0::/kubepods.slice/x\n").facts["kubernetes"].value is True
    assert read(world, KUBERNETES_SERVICE_HOST="10.0.0.1").facts["kubernetes"].value is True
    secrets = world / "root" / "var" / "run" / "secrets" / "kubernetes.io" / "serviceaccount"
    secrets.mkdir(parents=True)
    (secrets / "token").write_text("secret")
    found = read(world)
    assert found.facts["kubernetes"].value is True
    assert "secret" not in found.model_dump_json().replace("secrets/kubernetes.io", "")


def test_the_digest_of_the_image_where_somebody_says_it(world: Path) -> None:
    said = read(world).facts["image_digest"].unavailable
    assert said is not None
    assert "CONTAINER_IMAGE_DIGEST" in said
    variable = read(world, CONTAINER_IMAGE_DIGEST=f"registry.example/vllm@sha256:{ID}").facts["image_digest"]
    assert variable.value == f"sha256:{ID}"
    assert "as deployed" in variable.source
    assert read(world, IMAGE_DIGEST="latest").facts["image_digest"].value is None
    (world / "root" / "run").mkdir()
    (world / "root" / "run" / ".containerenv").write_text(f'engine="podman-5"\nimageid="{ID}"\n')
    assert read(world).facts["image_digest"].value == f"sha256:{ID}"


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (json.dumps({"ImageID": f"sha256:{ID}", "TaskARN": "arn:secret"}), f"sha256:{ID}"),
        ("{", None),
        ("[]", None),
        ('{"ImageID": 7}', None),
    ],
)
def test_the_file_that_ecs_writes(world: Path, content: str, value: str | None) -> None:
    (world / "root" / "meta.json").write_text(content)
    found = read(world, ECS_CONTAINER_METADATA_FILE="/meta.json").facts["image_digest"]
    assert found.value == value


def test_a_new_container_of_the_same_image_reads_the_same(world: Path) -> None:
    other = ID[::-1]
    first, second = (read(world, f"0::/system.slice/docker-{name}.scope\n") for name in (ID, other))
    assert first.facts == second.facts
    assert first.volatile != second.volatile
    assert read(world, f"0::/crio-{ID}.scope\n").facts != first.facts  # the control


def test_this_process_is_read_too_and_a_missing_proc_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert set(container.probe(Context(None, {}))["os"].facts) == {"container", "kubernetes", "image_digest"}
    monkeypatch.setattr(proc, "PROC", tmp_path)
    assert container.probe(Context(None, {}))["os"].facts["kubernetes"] is not None


def test_what_could_not_be_looked_at_is_not_said_to_be_absent(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read(world).facts["container"].unavailable == "no mark of a container was found"
    assert read(world).facts["kubernetes"].value is False
    monkeypatch.setattr(root_files, "why_closed", lambda root: proc.NO_PERMISSION)
    for name in ("container", "kubernetes", "image_digest"):
        assert read(world).facts[name].unavailable == proc.NO_PERMISSION
    assert read(world, f"0::/system.slice/docker-{ID}.scope\n").facts["container"].value == "docker"
