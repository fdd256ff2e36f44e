//! `memlock run`: a command under a lock.
//!
//! The command stays in our process group: the terminal's keys reach it as if we were not there, and only what was sent to us
//! alone is passed on. So Ctrl-C ends both, Ctrl-Z stops both, and a pipeline or a script around us is not disturbed.
//!
//! | the command | what is true | who may move it on |
//! | --- | --- | --- |
//! | runs | we hold the lock, and renew it if that was asked for | itself, by ending; time, by which the lock is lost |
//! | is stopped by job control | so are we, and nothing is renewed | whoever continues us; if that took too long the lock is lost |
//! | runs without the lock | it was lost, and its user told | itself; or we, if that was asked for: TERM to it and all that it has started |
//! | is to end | it, or what it has left, had TERM | itself; we, by KILL when the grace is over |
//! | has ended | we give the lock back | |

mod held;
mod signals;
mod tree;

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use libc::{c_int, pid_t};
use memlock_core::clock::{Clock, Moment, SystemClock};
use memlock_core::{Client, Release, Wait, Waited};

use crate::args::Run;
use crate::exit::{Status, Trouble};
use crate::out;
use held::Held;
use signals::{Came, Signals};
use tree::Tree;

/// How often the server is asked whether it has the lock yet: it may have lost it. The lease is looked at as often, since the
/// kernel's timers stand still while the machine is suspended, and leases do not.
const LOOK: Duration = Duration::from_secs(1);
/// How often what is to end is looked at, since who is not our own child ends without our being told.
const ENDING_LOOK: Duration = Duration::from_millis(20);
/// How long after KILL what is still there is given up: it may not be ours to end.
const GIVE_UP: Duration = Duration::from_secs(2);
/// Asks for what has ended, stopped or gone on, and waits for nothing.
const AT_ONCE: c_int = libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED;

/// Takes the lock, runs the command, gives the lock back.
pub(crate) fn run(url: &str, args: Run) -> Result<Status, Trouble> {
    let client = Client::connect(url)?;
    let name = args.name.as_bytes();
    let shown = out::shown(name);
    let signals = Signals::block().map_err(|error| system("Signals cannot be blocked", &error))?;
    // Asked by the wait again and again.
    let is_to_end = || {
        signals.stop_if_told();
        signals.is_to_end()
    };
    let wait = match (args.no_wait, args.wait) {
        (true, _) => Wait::NEVER,
        (_, Some(limit)) => Wait::at_most(limit),
        (_, None) => Wait::FOREVER,
    };
    let mut held = match Held::take(&client, &args, name, &wait.unless(&is_to_end))? {
        Waited::Done(held) => held,
        Waited::Busy => return Err(busy(&args, format!("Somebody else holds {shown}."))),
        Waited::TimedOut => {
            return Err(busy(&args, format!("Somebody else held {shown} for as long as was to be waited.")));
        }
        Waited::Interrupted => {
            if let Some(came) = signals.next_ending() {
                signals.suffer(came.signal);
                return Ok(Status::of_signal(came.signal));
            }
            return Err(busy(&args, format!("The wait for {shown} was interrupted.")));
        }
    };
    let tree = Tree::watch();
    if let Some(why) = held.lost() {
        return Err(Trouble::new(Status::LOST, format!("{shown} was lost before the command began: {why}.")));
    }
    signals.forget_messages();
    let child = match start(&args, &held, signals) {
        Ok(child) => child,
        Err(error) => {
            let _ = held.release();
            return Err(not_started(&args, &error));
        }
    };
    let mut watch = Watch {
        args: &args,
        shown: &shown,
        held: &held,
        tree,
        signals,
        child,
        stopped: false,
        lost: false,
        ending: None,
    };
    let (ended, by_key) = thread::scope(|scope| {
        let (_until_here, is_over) = mpsc::channel();
        let held = watch.held;
        // Not by this thread, which is to pass on signals also while a server is silent. Where none can be had the lease alone decides.
        let asking = thread::Builder::new().spawn_scoped(scope, move || ask(held, &is_over));
        if let Err(error) = asking {
            log::warn!("The server is not asked whether {shown} is still held: {error}.");
        }
        watch.until_it_ends()
    });
    let lost = watch.lost;
    let status = match give_back(&mut held, &shown, lost) {
        true => Status::LOST,
        false => status_of(ended),
    };
    // A shell whose script runs us goes on, unless it sees that we, too, were ended by the key.
    if status != Status::LOST && by_key && ended.signal() == Some(libc::SIGINT) {
        drop(held);
        signals.suffer(libc::SIGINT);
    }
    Ok(status)
}

/// Asks the server again and again, until it has lost the lock or the command has ended.
fn ask(held: &Held, is_over: &Receiver<()>) {
    while is_over.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
        if held.is_found_lost() {
            return signals::wake();
        }
    }
}

/// Starts the command in our process group, with the signals as we found them.
fn start(args: &Run, held: &Held, signals: Signals) -> io::Result<pid_t> {
    let (program, arguments) = args.command.split_first().ok_or(io::ErrorKind::NotFound)?;
    let mut command = Command::new(program);
    command.args(arguments).env("MEMLOCK_NAME", &args.name);
    let numbers = [("MEMLOCK_FENCE", held.fence()), ("MEMLOCK_DEADLINE", held.deadline(args))];
    for (variable, number) in numbers {
        match number {
            Some(number) => command.env(variable, number.to_string()),
            // Not that of a lock around ours.
            None => command.env_remove(variable),
        };
    }
    let (kill_on_lost, parent) = (args.kill_on_lost, signals::own_pid());
    // SAFETY: between fork and exec only prctl, getppid and pthread_sigmask run, which are async-signal-safe; nothing is allocated.
    unsafe {
        command.pre_exec(move || {
            // If we are killed, nobody renews the lock, and nobody else could end the command.
            if kill_on_lost
                && libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) == 0
                && libc::getppid() != parent
            {
                return Err(io::ErrorKind::Interrupted.into());
            }
            signals.restore()
        });
    }
    let child = command.spawn()?;
    pid_t::try_from(child.id()).map_err(io::Error::other)
}

/// The command while it runs.
struct Watch<'a> {
    args: &'a Run,
    shown: &'a str,
    held: &'a Held,
    tree: Tree,
    signals: Signals,
    child: pid_t,
    /// Whether the command is stopped, as far as we were told.
    stopped: bool,
    lost: bool,
    /// When what is to end is killed, and whether it was.
    ending: Option<(Moment, bool)>,
}

impl Watch<'_> {
    /// How it ended, and whether the terminal's interrupt key was pressed meanwhile.
    fn until_it_ends(&mut self) -> (ExitStatus, bool) {
        let mut by_key = false;
        let mut ended = None;
        let mut to_resume = false;
        loop {
            self.notice_loss();
            match self.reap(&mut ended) {
                Some(signal) if !self.is_ending() => {
                    self.signals.suffer(signal);
                    to_resume = true;
                    continue;
                }
                _ => {}
            }
            // Most often a shell has continued it with us, and it may have been stopped anew since: that is not to be undone.
            if std::mem::take(&mut to_resume) && self.stopped {
                signals::send(self.child, libc::SIGCONT);
            }
            if let Some(status) = ended
                && self.is_all_over(status)
            {
                return (status, by_key);
            }
            self.end_what_is_late();
            match self.signals.next(self.pause()) {
                Some(Came { signal: libc::SIGCONT, .. }) => to_resume = true,
                Some(Came { signal: libc::SIGCHLD, .. }) | None => {}
                // The stop key. The command has been stopped by something else already, and tells us nothing.
                Some(came)
                    if self.stopped && signals::STOPPING.contains(&came.signal) && !self.is_ending() =>
                {
                    self.signals.suffer(came.signal);
                    to_resume = true;
                }
                Some(came) => {
                    by_key |= came.signal == libc::SIGINT && came.from_kernel;
                    if ended.is_none() && !(came.went_to_our_group() && self.is_in_our_group()) {
                        signals::send(self.child, came.signal);
                    }
                }
            }
        }
    }

    fn notice_loss(&mut self) {
        if self.lost {
            return;
        }
        let Some(why) = self.held.lost() else { return };
        self.lost = true;
        let what_then = if self.args.kill_on_lost { "is ended" } else { "goes on without it" };
        out::complain(&format!("{} was lost: {why}. The command {what_then}.", self.shown));
        if self.args.kill_on_lost {
            self.begin_to_end();
        }
    }

    /// Buries the dead. How the command ended goes to `ended`; what is returned is the signal by which it was stopped.
    fn reap(&mut self, ended: &mut Option<ExitStatus>) -> Option<c_int> {
        let mut stopped = None;
        loop {
            let mut status = 0;
            // SAFETY: `status` is a valid place for the answer. All children are ours: `Command`'s handle is not used again.
            let pid = unsafe { libc::waitpid(-1, &mut status, AT_ONCE) };
            if pid <= 0 {
                return stopped;
            }
            if pid != self.child {
                continue;
            }
            self.stopped = libc::WIFSTOPPED(status);
            if libc::WIFCONTINUED(status) {
                stopped = None;
            } else if self.stopped {
                let signal = libc::WSTOPSIG(status);
                stopped = signals::STOPPING.contains(&signal).then_some(signal);
            } else {
                stopped = None;
                *ended = Some(ExitStatus::from_raw(status));
            }
        }
    }

    fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    fn begin_to_end(&mut self) {
        if self.ending.is_none() {
            self.ending = Some((SystemClock.now() + self.args.grace, false));
            self.tree.send(libc::SIGTERM);
            // What is stopped could not heed it.
            self.tree.send(libc::SIGCONT);
        }
    }

    fn end_what_is_late(&mut self) {
        if let Some((late, killed)) = &mut self.ending
            && *late <= SystemClock.now()
        {
            *killed = true;
            self.tree.send(libc::SIGKILL);
        }
    }

    /// The command has ended. Whether all has that is to end with it.
    fn is_all_over(&mut self, status: ExitStatus) -> bool {
        if self.ending.is_none() && status.signal().is_none() {
            return true;
        }
        if self.tree.living().is_empty() {
            return true;
        }
        // What it has started does not end with it by itself.
        self.begin_to_end();
        match self.ending {
            Some((late, true)) => SystemClock.now().since(late) > GIVE_UP,
            _ => false,
        }
    }

    fn is_in_our_group(&self) -> bool {
        // SAFETY: the calls take plain numbers.
        unsafe { libc::getpgid(self.child) == libc::getpgrp() }
    }

    fn pause(&self) -> Duration {
        if self.is_ending() {
            return ENDING_LOOK;
        }
        if self.lost { LOOK } else { self.held.remaining().min(LOOK) }
    }
}

/// Gives it back. True when it was lost.
fn give_back(held: &mut Held, shown: &str, lost_before: bool) -> bool {
    match held.release() {
        _ if lost_before => true,
        Ok(Release::Released) => false,
        Ok(_) => {
            out::complain(&format!(
                "{shown} was lost while the command ran: somebody else may have had it meanwhile."
            ));
            true
        }
        Err(error) => {
            out::complain(&format!(
                "{shown} could not be given back: it ends with its lease, unless the server has lost it already. {error}"
            ));
            false
        }
    }
}

fn status_of(ended: ExitStatus) -> Status {
    match (ended.code(), ended.signal()) {
        (Some(code), _) => Status(u8::try_from(code).unwrap_or(255)),
        (None, Some(signal)) => Status::of_signal(signal),
        (None, None) => Status::BUG,
    }
}

const NOT_STARTED: &str = "The command cannot be started";

fn not_started(args: &Run, error: &io::Error) -> Trouble {
    let program = args.command.first().map(|program| out::shown(program.as_bytes())).unwrap_or_default();
    match error.kind() {
        io::ErrorKind::NotFound => {
            Trouble::new(Status::NO_COMMAND, format!("The command {program} was not found."))
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => system(NOT_STARTED, error),
        _ if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => system(NOT_STARTED, error),
        _ => Trouble::new(
            Status::NOT_EXECUTABLE,
            format!("The command {program} cannot be executed: {error}."),
        ),
    }
}

fn busy(args: &Run, message: String) -> Trouble {
    Trouble::new(Status(args.conflict_exit_code), message)
}

fn system(what: &str, error: &io::Error) -> Trouble {
    Trouble::new(Status::SYSTEM, format!("{what}: {error}."))
}
