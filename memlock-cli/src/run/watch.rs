//! The command while it runs: signals for it, the loss of its lock, and its end.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use libc::{c_int, pid_t};
use memlock_core::clock::{Clock, Moment, SystemClock};

use super::check::CHECK_INTERVAL;
use super::held::Held;
use super::signals::{self, Came, Signals};
use super::stopped::stop_with;
use super::target::Target;
use super::tree::Tree;
use crate::args::{OnLost, Run};
use crate::duration::brief;
use crate::out;

/// How often processes that are to end are looked at: a process that is not memlock's own child
/// ends without notice.
const ENDING_LOOK: Duration = Duration::from_millis(20);
/// How long processes that start others are killed before signals are looked at again.
const KILL_BURST: Duration = Duration::from_millis(100);
/// How often new processes are looked for before those that were stopped are killed.
const STOP_ROUNDS: usize = 64;
/// How long after the first KILL what is left is given up: it may not be memlock's to end.
const GIVE_UP: Duration = Duration::from_secs(20);
/// How much later than the command this process may get the signal of the interrupt key.
const KEY_COMES: Duration = Duration::from_millis(20);
/// How many of them are named.
const NAMED: usize = 10;
/// Asks for what has ended, stopped or gone on, and waits for nothing.
const AT_ONCE: c_int = libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED;

/// The command while it runs.
pub(super) struct Watch<'a> {
    args: &'a Run,
    target: &'a Target,
    held: &'a Held,
    tree: Tree,
    signals: Signals,
    child: pid_t,
    /// Whether the command is stopped, as far as we know.
    stopped: bool,
    lost: bool,
    ending: Option<Ending>,
    /// Whether `waitpid` knows of any.
    has_children: bool,
}

/// What is to end has got TERM.
struct Ending {
    /// When what is left is killed.
    kill_at: Moment,
    was_killed: bool,
    /// The last look found a process that was not killed before: others may have started meanwhile.
    is_growing: bool,
}

impl<'a> Watch<'a> {
    pub(super) fn new(
        args: &'a Run,
        target: &'a Target,
        held: &'a Held,
        tree: Tree,
        signals: Signals,
        child: pid_t,
    ) -> Watch<'a> {
        Watch {
            args,
            target,
            held,
            tree,
            signals,
            child,
            stopped: false,
            lost: false,
            ending: None,
            has_children: true,
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost
    }

    /// How the command ended, and whether the terminal's interrupt key was pressed meanwhile.
    /// `None` when its lock is lost and it cannot be ended.
    pub(super) fn until_it_ends(&mut self) -> (Option<ExitStatus>, bool) {
        let mut by_key = false;
        let mut ended = None;
        let mut to_resume = false;
        loop {
            self.notice_loss();
            match self.reap(&mut ended) {
                Some(signal) if !self.is_ending() => {
                    stop_with(self.child, signal, &self.signals);
                    to_resume = true;
                    continue;
                }
                _ => {}
            }
            // Most often a shell has continued it with us, and it may have been stopped anew since:
            // that is not to be undone.
            if std::mem::take(&mut to_resume) && self.stopped {
                signals::send(self.child, libc::SIGCONT);
            }
            if self.is_all_over(ended) {
                let by_sigint = ended.and_then(|ended| ended.signal()) == Some(libc::SIGINT);
                // The key may have ended the command before this process has taken its own signal.
                return (
                    ended,
                    by_key || by_sigint && self.signals.has_key_been_pressed(KEY_COMES),
                );
            }
            self.end_what_is_late(&mut ended);
            match self.signals.next(self.pause()) {
                Some(Came { signal: libc::SIGCONT, .. }) => to_resume = true,
                Some(Came { signal: libc::SIGCHLD, .. }) | None => {}
                // The stop key. The command has been stopped by something else already, and tells
                // us nothing.
                Some(came)
                    if self.stopped
                        && signals::STOPPING.contains(&came.signal)
                        && !self.is_ending() =>
                {
                    stop_with(self.child, came.signal, &self.signals);
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
        let what_then = match self.args.on_lost {
            OnLost::Terminate => "is ended",
            OnLost::Continue => "goes on without it",
        };
        if self.args.on_lost == OnLost::Terminate {
            self.begin_to_end();
        }
        out::complain(&format!("{} was lost: {why}. The command {what_then}.", self.target));
    }

    /// Reaps children. How the command ended goes to `ended`; returns the signal by which it was
    /// stopped.
    fn reap(&mut self, ended: &mut Option<ExitStatus>) -> Option<c_int> {
        let mut stopped = None;
        loop {
            let mut status = 0;
            // SAFETY: `status` is a valid place for the answer. All children are ours: `Command`'s
            // handle is not used again.
            let pid = unsafe { libc::waitpid(-1, &mut status, AT_ONCE) };
            if pid <= 0 {
                self.has_children =
                    pid == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ECHILD);
                return stopped;
            }
            // Once the command was reaped, another process may get its number.
            if pid != self.child || ended.is_some() {
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
            let kill_at = SystemClock.now() + self.args.grace;
            self.ending = Some(Ending { kill_at, was_killed: false, is_growing: false });
            self.tree.send(libc::SIGTERM);
            // A process that is stopped could not act on it.
            self.tree.send(libc::SIGCONT);
        }
    }

    fn end_what_is_late(&mut self, ended: &mut Option<ExitStatus>) {
        let now = SystemClock.now();
        if self.ending.as_ref().is_none_or(|ending| ending.kill_at > now) {
            return;
        }
        let is_growing = loop {
            // All are stopped before the first one is killed, so that none replaces it. Those that
            // have ended are reaped at once: they would have to be looked through again and again.
            let mut rounds = 0..STOP_ROUNDS;
            while rounds.next().is_some() && self.has_children && self.tree.stop() {
                self.reap(ended);
            }
            let is_growing = self.tree.kill();
            self.reap(ended);
            if !is_growing || !self.has_children || SystemClock.now().since(now) > KILL_BURST {
                break is_growing;
            }
        };
        if let Some(ending) = &mut self.ending {
            ending.was_killed = true;
            ending.is_growing = is_growing;
        }
    }

    /// Whether nothing is left to wait for: neither the command, nor a process that is to end with
    /// it.
    fn is_all_over(&mut self, ended: Option<ExitStatus>) -> bool {
        let Some(ending) = &self.ending else {
            let Some(status) = ended else { return false };
            if status.signal().is_none() || self.tree.is_empty(self.has_children) {
                return true;
            }
            // Other processes of the command do not end with it by themselves.
            self.begin_to_end();
            return false;
        };
        if ended.is_some() && self.tree.is_empty(self.has_children) {
            return true;
        }
        let is_given_up = ending.was_killed && SystemClock.now().since(ending.kill_at) > GIVE_UP;
        if is_given_up {
            let left: Vec<String> =
                self.tree.processes().iter().take(NAMED).map(ToString::to_string).collect();
            out::complain(&format!(
                "What the command under {} has started could not be ended within {}, and may run beside the next \
                 holder's command. Processes: {}.",
                self.target,
                brief(GIVE_UP),
                if left.is_empty() {
                    "not to be found in /proc".to_owned()
                } else {
                    left.join(", ")
                }
            ));
        }
        is_given_up
    }

    fn is_in_our_group(&self) -> bool {
        // SAFETY: the calls take plain numbers.
        unsafe { libc::getpgid(self.child) == libc::getpgrp() }
    }

    fn pause(&self) -> Duration {
        match &self.ending {
            Some(ending) if ending.is_growing => Duration::ZERO,
            Some(_) => ENDING_LOOK,
            None if self.lost => CHECK_INTERVAL,
            None => self.held.remaining().min(CHECK_INTERVAL),
        }
    }
}
