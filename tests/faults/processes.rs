//! The client processes of a round: started, killed, stopped, and asked to end.

use std::collections::HashMap;
use std::io;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use memlock_tests::cable;
use memlock_tests::chance::Chance;
use memlock_tests::history::{Reader, Span};
use memlock_tests::launch::{self, spawn};

use crate::{Failure, now};

/// How long clients may take to begin.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long a client may take to end once it is asked to: a wait, an overslept lease, a release,
/// each with its bound.
const END_LIMIT: Duration = Duration::from_secs(15);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    C,
    Python,
    Rust,
    /// In Rust, and wrong on purpose.
    Credulous,
}

/// The clients of a round: ten threads in eight processes.
pub(crate) const USUAL: [Kind; 8] = {
    use Kind::{C, Python, Rust};
    [C, Python, Rust, C, Rust, Python, C, C]
};

/// Where the programs are.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    pub(crate) c: PathBuf,
    pub(crate) python: PathBuf,
    pub(crate) script: PathBuf,
    pub(crate) rust: PathBuf,
}

/// How a client reaches the server.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    pub(crate) url: String,
    /// The network namespace that it lives in.
    pub(crate) namespace: Option<RawFd>,
}

#[derive(Debug)]
struct Member {
    number: usize,
    kind: Kind,
    way: Way,
    child: Child,
    history: PathBuf,
    stopped: Option<Duration>,
}

impl Member {
    fn has_begun(&self) -> bool {
        self.history.metadata().is_ok_and(|file| file.len() > 0)
    }
}

/// All of them. Dropping it kills them; so does the kernel if this process dies.
pub(crate) struct ClientProcess {
    programs: Programs,
    folder: PathBuf,
    chance: Chance,
    members: Vec<Member>,
    pub(crate) readers: Vec<Reader>,
    pub(crate) deaths: HashMap<usize, Duration>,
    stops: Vec<(usize, Span)>,
    /// The processes below this number are not killed.
    spared: usize,
    /// What clients did that they should not do, such as ending by themselves.
    pub(crate) misdeeds: Vec<String>,
}

impl ClientProcess {
    pub(crate) fn new(programs: &Programs, folder: &Path, seed: u64) -> ClientProcess {
        ClientProcess {
            programs: programs.clone(),
            folder: folder.to_owned(),
            chance: Chance(seed),
            members: Vec::new(),
            readers: Vec::new(),
            deaths: HashMap::new(),
            stops: Vec::new(),
            spared: 0,
            misdeeds: Vec::new(),
        }
    }

    pub(crate) fn start(&mut self, kind: Kind, way: &Way) -> Result<(), Failure> {
        let number = self.readers.len();
        let history = self.folder.join(number.to_string());
        let mut command = match kind {
            Kind::C => Command::new(&self.programs.c),
            Kind::Python => Command::new(&self.programs.python),
            Kind::Rust | Kind::Credulous => Command::new(&self.programs.rust),
        };
        if kind == Kind::Python {
            command.arg(&self.programs.script);
        }
        command.arg(&way.url).arg(&history).arg((self.chance.number() >> 1).to_string());
        if kind == Kind::Credulous {
            command.arg("credulous");
        }
        if let Some(namespace) = way.namespace {
            cable::enter(&mut command, namespace);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let child = spawn(command)?;
        self.readers.push(Reader::new(number, history.clone()));
        self.members.push(Member { number, kind, way: way.clone(), child, history, stopped: None });
        Ok(())
    }

    /// Spares those that run now from being killed.
    pub(crate) fn spare_all(&mut self) {
        self.spared = self.readers.len();
    }

    /// When processes stood still, until now.
    pub(crate) fn stops(&self, now: Duration) -> Vec<(usize, Span)> {
        let still = self.members.iter().filter_map(|member| {
            Some((member.number, Span { from: member.stopped?, to: now.max(member.stopped?) }))
        });
        self.stops.iter().copied().chain(still).collect()
    }

    /// The processes that run, by their numbers.
    pub(crate) fn pids(&self) -> HashMap<usize, u32> {
        self.members.iter().map(|member| (member.number, member.child.id())).collect()
    }

    /// The histories that end within a line, of processes that were not killed.
    pub(crate) fn half_lines(&self) -> Vec<String> {
        let cut_off = self.readers.iter().enumerate().filter(|(_, reader)| reader.is_cut_off());
        let alive = cut_off.filter(|(number, _)| !self.deaths.contains_key(number));
        alive
            .map(|(number, _)| format!("the history of process {number} ends within a line"))
            .collect()
    }

    /// Kills one that is not spared, and starts another of its kind.
    pub(crate) fn replace_any(&mut self) -> Result<(), Failure> {
        let mortal =
            self.members.iter().enumerate().filter(|(_, member)| member.number >= self.spared);
        let mortal: Vec<usize> = mortal.map(|(place, _)| place).collect();
        let Some(&place) = mortal.get(self.chance.below(mortal.len().max(1) as u64) as usize)
        else {
            return Ok(());
        };
        let mut member = self.members.remove(place);
        self.go_on_member(&mut member)?;
        // From before the signal: what it did afterwards does not count.
        self.deaths.insert(member.number, now());
        member.child.kill()?;
        member.child.wait()?;
        self.start(member.kind, &member.way)
    }

    /// Kills all, with whatever they hold.
    pub(crate) fn kill_all(&mut self) -> Result<(), Failure> {
        for mut member in std::mem::take(&mut self.members) {
            self.deaths.insert(member.number, now());
            member.child.kill()?;
            member.child.wait()?;
        }
        Ok(())
    }

    /// Stops one (SIGSTOP), and gives its number; None if it stands still already.
    pub(crate) fn stop_any(&mut self) -> Result<Option<usize>, Failure> {
        let place = self.chance.below(self.members.len().max(1) as u64) as usize;
        let Some(member) = self.members.get_mut(place).filter(|member| member.stopped.is_none())
        else {
            return Ok(None);
        };
        member.stopped = Some(now());
        signal(&member.child, libc::SIGSTOP)?;
        Ok(Some(member.number))
    }

    /// Lets one go on, if it is still there.
    pub(crate) fn go_on(&mut self, number: usize) -> Result<(), Failure> {
        let Some(place) = self.members.iter().position(|member| member.number == number) else {
            return Ok(());
        };
        let mut member = self.members.remove(place);
        let gone_on = self.go_on_member(&mut member);
        self.members.push(member);
        gone_on
    }

    fn go_on_member(&mut self, member: &mut Member) -> Result<(), Failure> {
        if let Some(from) = member.stopped.take() {
            signal(&member.child, libc::SIGCONT)?;
            self.stops.push((member.number, Span { from, to: now() }));
        }
        Ok(())
    }

    /// Waits until every client has begun.
    pub(crate) fn see_them_begin(&self) -> Result<(), Failure> {
        let end = now() + START_LIMIT;
        while !self.members.iter().all(Member::has_begun) {
            if now() > end {
                return Err(format!("not all clients began within {START_LIMIT:?}").into());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Leaves each process only the descriptors that it has, or gives them all back. A process that
    /// has not begun needs more than that to begin.
    pub(crate) fn limit_descriptors(&self, limited: bool) -> Result<(), Failure> {
        for member in self.members.iter().filter(|member| member.has_begun()) {
            // Above standard input, output, error and the history everything is ours to refuse.
            let soft = if limited { 4 } else { 1024 };
            let limit = libc::rlimit { rlim_cur: soft, rlim_max: 1024 };
            let pid = libc::pid_t::try_from(member.child.id())?;
            // SAFETY: a valid limit, and no old one is asked for; the pid is that of a child not
            // waited for.
            if unsafe {
                libc::prlimit(pid, libc::RLIMIT_NOFILE, &raw const limit, std::ptr::null_mut())
            } != 0
            {
                return Err(io::Error::last_os_error().into());
            }
        }
        Ok(())
    }

    /// Notes those that ended by themselves, and starts others.
    pub(crate) fn see_who_ended(&mut self) -> Result<(), Failure> {
        for place in (0..self.members.len()).rev() {
            if let Some(status) = self.members[place].child.try_wait()? {
                let member = self.members.remove(place);
                self.deaths.insert(member.number, now());
                self.misdeeds.push(format!(
                    "process {} ({:?}) ended by itself: {status}",
                    member.number, member.kind
                ));
                self.start(member.kind, &member.way)?;
            }
        }
        Ok(())
    }

    /// Asks all to end, and sees that they do.
    pub(crate) fn dismiss(&mut self) -> Result<(), Failure> {
        for mut member in std::mem::take(&mut self.members) {
            self.go_on_member(&mut member)?;
            drop(member.child.stdin.take());
            self.members.push(member);
        }
        let end = now() + END_LIMIT;
        while let Some(mut member) = self.members.pop() {
            let status = loop {
                match member.child.try_wait()? {
                    None if now() < end => thread::sleep(Duration::from_millis(5)),
                    status => break status,
                }
            };
            let who = format!("process {} ({:?})", member.number, member.kind);
            match status {
                Some(status) if status.success() => {}
                Some(status) => self.misdeeds.push(format!("{who} ended with {status}")),
                None => {
                    self.misdeeds
                        .push(format!("{who} was asked to end, and did not in {END_LIMIT:?}"));
                    self.deaths.insert(member.number, now());
                    launch::end(&mut member.child);
                }
            }
        }
        Ok(())
    }
}

impl Drop for ClientProcess {
    fn drop(&mut self) {
        self.members.iter_mut().for_each(|member| launch::end(&mut member.child));
    }
}

fn signal(child: &Child, signal: libc::c_int) -> Result<(), Failure> {
    let pid = libc::pid_t::try_from(child.id())?;
    // SAFETY: the pid is that of a child that was not waited for, so no other process can have it.
    match unsafe { libc::kill(pid, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error().into()),
    }
}
