//! All that the command has started, and has been started by that: found in /proc, since processes can leave every group.
//!
//! We are the reaper of what loses its parent below us (PR_SET_CHILD_SUBREAPER), so that nothing leaves the tree.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;

use libc::pid_t;

use super::signals;

/// The processes below us, without those that were there before the command.
#[derive(Debug, Default)]
pub(super) struct Tree {
    others: HashSet<pid_t>,
}

impl Tree {
    /// To be made before the command is started.
    pub(super) fn watch() -> Tree {
        // SAFETY: the call takes plain numbers. Where the system does not know it, what loses its parent is not found.
        unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
        Tree { others: below(signals::own_pid(), &HashSet::new()).into_iter().collect() }
    }

    /// Those that are alive.
    pub(super) fn living(&self) -> Vec<pid_t> {
        below(signals::own_pid(), &self.others)
    }

    /// Sends a signal to all of them.
    pub(super) fn send(&self, signal: libc::c_int) {
        for pid in self.living() {
            signals::send(pid, signal);
        }
    }
}

/// The descendants of `top` that are alive, without `others` and what these have started.
fn below(top: pid_t, others: &HashSet<pid_t>) -> Vec<pid_t> {
    let mut children: HashMap<pid_t, Vec<(pid_t, bool)>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Ok((parent, alive)) = parent(pid) {
            children.entry(parent).or_default().push((pid, alive));
        }
    }
    let mut found = Vec::new();
    let mut next = vec![top];
    while let Some(parent) = next.pop() {
        for (pid, alive) in children.remove(&parent).unwrap_or_default() {
            if others.contains(&pid) {
                continue;
            }
            next.push(pid);
            if alive {
                found.push(pid);
            }
        }
    }
    found
}

/// The parent of a process, and whether it is alive.
fn parent(pid: pid_t) -> io::Result<(pid_t, bool)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // Behind the name, which may contain anything: state and parent.
    let mut words = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    let state = words.next().unwrap_or_default();
    let parent = words.next().and_then(|word| word.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    Ok((parent, !matches!(state, "Z" | "X" | "x")))
}
