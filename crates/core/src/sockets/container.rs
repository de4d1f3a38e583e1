//! The container and the pod of a control group, parsed from its path.
//!
//! Runtimes use a few patterns: the container's id (64 hexadecimal digits, with or without the runtime's name before it), the
//! pod's uid after `pod`, and the machine's name for systemd-nspawn and LXC. The deepest match counts, so a container inside
//! a container is the inner one.

/// The container and the pod of a control group; empty where its path has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Placement {
    /// Id of the container, or name of the machine of systemd-nspawn or LXC.
    pub container: String,
    /// Uid of the Kubernetes pod, or id of the podman pod.
    pub pod: String,
}

/// Parses the path of a control group, such as `/docker/3f1c…`.
pub fn placement(path: &str) -> Placement {
    let mut found = Placement::default();
    let mut parent = "";
    // containerd with the systemd driver, on a host without systemd: `SLICE:cri-containerd:ID`.
    for part in path.split(['/', ':']).filter(|part| !part.is_empty()) {
        if let Some(pod) = pod(part) {
            found = Placement { pod, container: String::new() };
        } else if let Some(container) = container(part, parent) {
            found.container = container;
        }
        parent = part;
    }
    found
}

fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn container(part: &str, parent: &str) -> Option<String> {
    let unit = part.strip_suffix(".scope").or_else(|| part.strip_suffix(".service")).unwrap_or(part);
    if let Some((before, id)) = unit.len().checked_sub(64).and_then(|at| unit.split_at_checked(at)) {
        // `conmon-ID` is the group of the container's monitor (podman, CRI-O), not of the container.
        if is_hex(id, 64) && (before.is_empty() || before.ends_with('-') && !before.ends_with("conmon-")) {
            return Some(id.to_owned());
        }
    }
    if unit != part {
        let machine = unit.strip_prefix("systemd-nspawn@").or_else(|| unit.strip_prefix("machine-"))?;
        // libvirt's virtual machines (`qemu-NUMBER-NAME`) are not containers. Its LXC containers are named lxc-NUMBER-NAME.
        let name = unescaped(machine);
        return (!name.starts_with("qemu-")).then_some(name);
    }
    if let Some(name) = part.strip_prefix("lxc.payload.") {
        return Some(name.to_owned());
    }
    if matches!(parent, "lxc" | "lxc.payload") {
        return Some(part.to_owned());
    }
    // AWS Fargate: the task's id and a number.
    let (task, number) = part.split_once('-')?;
    (task == parent && is_hex(task, 32) && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| part.to_owned())
}

fn pod(part: &str) -> Option<String> {
    let slice = part.strip_suffix(".slice").unwrap_or(part);
    if let Some((_, id)) = slice.rsplit_once("libpod_pod_") {
        return is_hex(id, 64).then(|| id.to_owned());
    }
    let (before, uid) = slice.rsplit_once("pod")?;
    if !(before.is_empty() || before.ends_with('-')) {
        return None;
    }
    // The uid of a static pod is the hash of its manifest.
    if is_hex(uid, 32) {
        return Some(uid.to_owned());
    }
    // A dash in the name of a slice separates levels, so the systemd driver writes underscores.
    let parts: Vec<&str> = uid.split(['-', '_']).collect();
    let lengths = [8, 4, 4, 4, 12];
    let fits = parts.len() == lengths.len() && parts.iter().zip(lengths).all(|(part, length)| is_hex(part, length));
    fits.then(|| parts.join("-"))
}

/// Decodes the name of a systemd unit, in which `\x` and two digits stand for a byte that such a name cannot contain.
fn unescaped(name: &str) -> String {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = tail.strip_prefix(b"x").filter(|_| *first == b'\\').and_then(|digits| {
            let digits = std::str::from_utf8(digits.get(..2)?).ok()?;
            u8::from_str_radix(digits, 16).ok()
        });
        match escaped {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f1c0c8a2b6d4e5f9a7b8c9d0e1f2a3b4c5d6e7f8091a2b3c4d5e6f708192a3b";
    const INNER: &str = "00aa0c8a2b6d4e5f9a7b8c9d0e1f2a3b4c5d6e7f8091a2b3c4d5e6f7081900aa";
    const UID: &str = "7d9e1b52-0c3f-4f6a-9f57-2f0b8c1d4e6a";
    const UNDER: &str = "7d9e1b52_0c3f_4f6a_9f57_2f0b8c1d4e6a";
    const STATIC: &str = "8a1cf37f82a4b1c2d3e4f5061728394a";

    fn assert_all(table: &[(String, &str, &str)]) {
        for (path, container, pod) in table {
            let expected = Placement { container: (*container).to_owned(), pod: (*pod).to_owned() };
            assert_eq!(placement(path), expected, "{path}");
        }
    }

    #[test]
    fn containers_outside_pods() {
        assert_all(&[
            (format!("/docker/{ID}"), ID, ""),
            (format!("/system.slice/docker-{ID}.scope"), ID, ""),
            (format!("/docker/{ID}/init.scope"), ID, ""),
            (format!("/docker/{ID}/docker/{INNER}"), INNER, ""),
            (format!("/user.slice/user-1000.slice/user@1000.service/app.slice/docker-{ID}.scope"), ID, ""),
            (format!("/system.slice/nerdctl-{ID}.scope"), ID, ""),
            (format!("/default/{ID}"), ID, ""),
            (format!("/ecs/task/{ID}"), ID, ""),
            (format!("/ecs/{STATIC}/{STATIC}-1498022389"), &format!("{STATIC}-1498022389"), ""),
            (format!("/machine.slice/libpod-{ID}.scope/container"), ID, ""),
            (format!("/libpod_parent/libpod-{ID}"), ID, ""),
            (format!("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container"), ID, ""),
        ]);
    }

    #[test]
    fn pods_of_both_cgroup_drivers_and_all_runtimes() {
        let slice = format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDER}.slice");
        assert_all(&[
            (format!("/kubepods/burstable/pod{UID}/{ID}"), ID, UID),
            (format!("/kubepods/pod{UID}/{ID}"), ID, UID),
            (format!("/kubepods/besteffort/pod{UID}/crio-{ID}"), ID, UID),
            (format!("/kubepods/besteffort/pod{STATIC}/{ID}"), ID, STATIC),
            (format!("{slice}/cri-containerd-{ID}.scope"), ID, UID),
            (format!("{slice}/crio-{ID}.scope"), ID, UID),
            (format!("{slice}/crio-{ID}.scope/container"), ID, UID),
            (format!("{slice}/docker-{ID}.scope"), ID, UID),
            (slice.clone(), "", UID),
            (format!("/kubepods.slice/kubepods-pod{STATIC}.slice/cri-containerd-{ID}.scope"), ID, STATIC),
            (
                format!("/system.slice/containerd.service/kubepods-burstable-pod{UNDER}.slice:cri-containerd:{ID}"),
                ID,
                UID,
            ),
            (
                format!(
                    "/docker/{INNER}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/\
                     kubelet-kubepods-besteffort-pod{UNDER}.slice/cri-containerd-{ID}.scope"
                ),
                ID,
                UID,
            ),
            // The pod's own group in a node that is itself a container.
            (format!("/docker/{INNER}/kubelet/kubepods/burstable/pod{UID}"), "", UID),
            (format!("/machine.slice/machine-libpod_pod_{INNER}.slice/libpod-{ID}.scope"), ID, INNER),
            (format!("/libpod_parent/libpod_pod_{INNER}/libpod-{ID}"), ID, INNER),
        ]);
    }

    #[test]
    fn machines_by_name() {
        assert_all(&[
            ("/machine.slice/systemd-nspawn@web.service/payload/system.slice/nginx.service".into(), "web", ""),
            ("/machine.slice/machine-my\\x2dbox.scope".into(), "my-box", ""),
            ("/machine.slice/machine-lxc\\x2d123\\x2dweb.scope/system.slice".into(), "lxc-123-web", ""),
            ("/lxc/web/system.slice/ssh.service".into(), "web", ""),
            ("/lxc.payload.web".into(), "web", ""),
            ("/lxc.payload/web/init.scope".into(), "web", ""),
        ]);
    }

    #[test]
    fn other_paths_have_no_container() {
        assert_all(&[
            ("/".into(), "", ""),
            (String::new(), "", ""),
            ("/system.slice/nginx.service".into(), "", ""),
            ("/user.slice/user-0.slice/session-4.scope".into(), "", ""),
            ("/machine.slice/machine-qemu\\x2d1\\x2dvm.scope/libvirt/emulator".into(), "", ""),
            ("/lxc.monitor.web".into(), "", ""),
            ("/lxc".into(), "", ""),
            (format!("/system.slice/{}.service", &ID[..63]), "", ""),
            (format!("/app{ID}"), "", ""),
            (format!("/kubepods.slice/kubepods-pod{UNDER}.slice/crio-conmon-{ID}.scope"), "", UID),
            (format!("/machine.slice/libpod-conmon-{ID}.scope"), "", ""),
            ("/kubepods/burstable/podfoo".into(), "", ""),
            (format!("/tripod{UID}"), "", ""),
            ("/é/machine-\\x2.scope/\\xé.scope".into(), "\\x2", ""),
        ]);
    }
}
