//! The processes that the command has started, with all that those have started.
//!
//! They may leave every process group and session, and a parent may end before its child. memlock
//! is a subreaper (PR_SET_CHILD_SUBREAPER): a process whose parent ends becomes memlock's own
//! child, and none leaves the tree.
//!
//! | what a process does | how it is ended |
//! | --- | --- |
//! | it sleeps, or ignores TERM | KILL after the grace |
//! | it starts another process whenever one ends | all are stopped before the first one is killed |
//! | it starts another process and ends itself, again and again | its successor becomes memlock's child, and is looked for until `waitpid` says that there is none. A process with a pending STOP or KILL cannot fork |
//! | it may not be signalled, or the kernel does not let go of it | given up after a time, and reported |

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;

use libc::pid_t;

use super::signals;

/// How often in a row nothing must be found where `waitpid` cannot say that there is nothing.
const EMPTY_LOOKS: usize = 3;

/// The processes below memlock, without those that were there before the command.
#[derive(Debug)]
pub(super) struct Tree {
    /// The children that memlock was started with, when a shell with background jobs executes it:
    /// when each was started.
    others: HashMap<pid_t, u64>,
    /// Whether the kernel lists a process's children. Otherwise all processes are looked through,
    /// which takes longer.
    lists_children: bool,
    /// Since processes were killed the last time.
    stopped: HashSet<pid_t>,
    killed: HashSet<pid_t>,
}

impl Tree {
    /// To be made before the command is started.
    pub(super) fn watch() -> Tree {
        // SAFETY: the call takes plain numbers. Where the system does not know it, an orphan is not
        // found.
        unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
        let lists_children = Path::new("/proc/thread-self/children").exists();
        let mut tree = Tree {
            others: HashMap::new(),
            lists_children,
            stopped: HashSet::new(),
            killed: HashSet::new(),
        };
        let others =
            tree.processes().into_iter().filter_map(|pid| Some((pid, Stat::of(pid).ok()?.started)));
        tree.others = others.collect();
        tree
    }

    /// Sends a signal to all processes.
    pub(super) fn send(&self, signal: libc::c_int) {
        for pid in self.processes() {
            signals::send(pid, signal);
        }
    }

    /// Stops each process as soon as it is found. False when none was found that was not stopped
    /// before.
    pub(super) fn stop(&mut self) -> bool {
        let mut found = Vec::new();
        self.each_listed(|pid| {
            if !self.stopped.contains(&pid) {
                signals::send(pid, libc::SIGSTOP);
                found.push(pid);
            }
        });
        self.stopped.extend(&found);
        !found.is_empty()
    }

    /// Kills each process as soon as it is found. False when none was found that was not killed
    /// before.
    pub(super) fn kill(&mut self) -> bool {
        self.stopped.clear();
        let mut found = Vec::new();
        self.each_listed(|pid| {
            signals::send(pid, libc::SIGKILL);
            found.push(pid);
        });
        let before = self.killed.len();
        self.killed.extend(found);
        self.killed.len() > before
    }

    /// Whether there is no process left. `has_children` is what `waitpid` says.
    pub(super) fn is_empty(&self, has_children: bool) -> bool {
        let may_be_others = !self.others.is_empty();
        !has_children || may_be_others && (0..EMPTY_LOOKS).all(|_| self.processes().is_empty())
    }

    /// All processes, parents before their children: as listed by the kernel, whose lists may lack
    /// one while others end, and by a walk through all processes.
    pub(super) fn processes(&self) -> Vec<pid_t> {
        let (mut found, mut known) = (Vec::new(), HashSet::new());
        let mut visit = |pid| {
            if known.insert(pid) {
                found.push(pid);
            }
        };
        self.each_listed(&mut visit);
        self.each_walked(visit);
        found
    }

    fn each_listed(&self, visit: impl FnMut(pid_t)) {
        if self.lists_children { self.each(children, visit) } else { self.each_walked(visit) }
    }

    fn each_walked(&self, visit: impl FnMut(pid_t)) {
        let mut children: HashMap<pid_t, Vec<pid_t>> = HashMap::new();
        for pid in numbers("/proc".to_owned()) {
            if let Ok(stat) = Stat::of(pid) {
                children.entry(stat.parent).or_default().push(pid);
            }
        }
        self.each(|parent| children.remove(&parent).unwrap_or_default(), visit);
    }

    /// Visits the descendants of memlock, each as soon as it is known: some live for less than a
    /// millisecond.
    fn each<C: IntoIterator<Item = pid_t>>(
        &self,
        mut children: impl FnMut(pid_t) -> C,
        mut visit: impl FnMut(pid_t),
    ) {
        let mut next = vec![signals::own_pid()];
        while let Some(parent) = next.pop() {
            for pid in children(parent) {
                if !self.is_other(pid) {
                    visit(pid);
                    next.push(pid);
                }
            }
        }
    }

    fn is_other(&self, pid: pid_t) -> bool {
        let started = self.others.get(&pid);
        started.is_some_and(|&started| Stat::of(pid).is_ok_and(|stat| stat.started == started))
    }
}

/// The children of all threads of a process. Orphans are the first thread's.
fn children(of: pid_t) -> impl Iterator<Item = pid_t> {
    let tasks = format!("/proc/{of}/task");
    numbers(tasks.clone()).flat_map(move |task| {
        let list = fs::read_to_string(format!("{tasks}/{task}/children")).unwrap_or_default();
        list.split(' ').filter_map(|pid| pid.parse().ok()).collect::<Vec<pid_t>>()
    })
}

/// The entries of a folder that are numbers.
fn numbers(folder: String) -> impl Iterator<Item = pid_t> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// What the kernel says of a process.
struct Stat {
    parent: pid_t,
    /// In ticks since the machine was started: with the number it names the process.
    started: u64,
}

impl Stat {
    fn of(pid: pid_t) -> io::Result<Stat> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // Behind the name, which may contain anything, from the third field on: the 4th is the
        // parent, the 22nd the start.
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let number = |place: usize| fields.get(place).and_then(|field| field.parse::<u64>().ok());
        let parent = number(1).and_then(|parent| pid_t::try_from(parent).ok());
        match (parent, number(19)) {
            (Some(parent), Some(started)) => Ok(Stat { parent, started }),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::process::Command;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    /// Of a chain of shells, of which each waits for the next.
    #[test]
    fn parents_come_before_their_children() {
        const SHELLS: usize = 8;
        let mut tree = Tree::watch();
        let chain =
            format!("f() {{ [ $1 = 0 ] && exec sleep 60; (f $(($1 - 1)); :); :; }}; f {SHELLS}");
        let mut first = Command::new("sh").args(["-c", &chain]).spawn().unwrap();
        let began = Instant::now();
        loop {
            let found = tree.processes();
            let place = |pid| found.iter().position(|&other| other == pid);
            let mut line = vec![first.id() as pid_t];
            let child = |of: pid_t| {
                found.iter().find(|&&pid| Stat::of(pid).is_ok_and(|stat| stat.parent == of))
            };
            while let Some(&next) = child(line[line.len() - 1]) {
                line.push(next);
            }
            assert!(
                line.windows(2).all(|pair| place(pair[0]) < place(pair[1])),
                "{line:?} in {found:?}"
            );
            if line.len() > SHELLS {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(20), "{line:?}");
            thread::sleep(Duration::from_millis(1));
        }
        while tree.kill() {}
        first.wait().unwrap();
    }
}
