//! `memlock run`: a command under a lock.
//!
//! The command stays in our process group: the terminal's keys reach it as if we were not there,
//! and only what was sent to us alone is passed on. So Ctrl-C ends both, Ctrl-Z stops both, and a
//! pipeline or a script around us is not disturbed.
//!
//! | the command | what is true | what moves it on |
//! | --- | --- | --- |
//! | runs | the lock is held, and renewed unless --no-renew was given | its end; the loss of the lock |
//! | is stopped by job control | memlock is stopped, too, and renews nothing | SIGCONT to either; if that took too long the lock is lost |
//! | runs without the lock (--on-lost=continue) | the loss was reported | its end |
//! | is to end | it, or what it has left, got TERM | its end; KILL after the grace, until no process is left |
//! | has ended | the lock is released | |

mod addressed;
mod around;
mod check;
mod held;
mod program;
mod signals;
mod stopped;
mod target;
mod tree;
mod watch;

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::sync::mpsc;
use std::thread;

use libc::pid_t;
use memlock_core::store::without_password;
use memlock_core::{Answer, Error, ErrorKind, Release, Report, Wait};

use crate::args::{OnLost, Run};
use crate::connect::{Url, connect};
use crate::duration::brief;
use crate::exit::{CliError, Status};
use crate::out::{self, complain};
use crate::text::shown;
use addressed::Addressed;
use around::Around;
use held::Held;
use signals::Signals;
use target::{Acquired, Target};
use tree::Tree;
use watch::Watch;

/// Takes the lock, runs the command, releases the lock.
pub(crate) fn run(url: &Url, args: &Run, verbose: bool) -> Result<Status, CliError> {
    if url.is_default && !args.quiet {
        complain(&format!(
            "Neither --url nor MEMLOCK_URL or MEMLOCK_URL_FILE names a server: {} keeps out commands on this host only. Name one that \
             all hosts use, or say --quiet.",
            url.text
        ));
    }
    let client = connect(url)?;
    let target = Target::new(&client, args)?;
    let signals = Signals::block().map_err(|error| system("Signals cannot be blocked", &error))?;
    let around = Around::of_this_process();
    let acquired = match acquire(&target, args, verbose, signals)? {
        Ok(acquired) => acquired,
        Err(report) => return not_acquired(args, &target, report, signals),
    };
    out::complain_in_background();
    let mut held = Held::new(acquired, &target, args)?;
    let tree = Tree::watch();
    if let Some(why) = held.lost() {
        return Err(CliError::new(
            Status::LOST,
            format!("{target} was lost before the command began: {why}."),
        ));
    }
    signals.forget_messages();
    let child = match start(args, &held, signals, &around) {
        Ok(child) => child,
        Err(error) => {
            let _ = held.release(signals);
            return Err(not_started(args, &error));
        }
    };
    let mut watch = Watch::new(args, &target, &held, tree, signals, child);
    let (ended, by_key) = thread::scope(|scope| {
        let (_until_here, is_over) = mpsc::channel();
        let held = &held;
        // Not by this thread, which is to pass on signals also while a server is silent. Where no
        // other thread can be started the lease alone decides.
        let asking =
            thread::Builder::new().spawn_scoped(scope, move || check::until_lost(held, &is_over));
        if let Err(error) = asking {
            log::warn!("The server is not asked whether {target} is still held: {error}.");
        }
        watch.until_it_ends()
    });
    let lost = watch.is_lost();
    let status = match (give_back(&mut held, &target, signals, lost), ended) {
        (false, Some(ended)) => status_of(ended),
        _ => Status::LOST,
    };
    // A shell whose script runs us goes on, unless it sees that we, too, were ended by the key.
    if status != Status::LOST
        && by_key
        && ended.and_then(|ended| ended.signal()) == Some(libc::SIGINT)
    {
        drop(held);
        out::finish();
        signals.suffer(libc::SIGINT);
    }
    Ok(status)
}

/// Acquires it, as long as no signal comes that is to end us.
fn acquire(
    target: &Target,
    args: &Run,
    verbose: bool,
    signals: Signals,
) -> Result<Result<Acquired, Report>, CliError> {
    // Asked by the wait again and again.
    let is_to_end = || {
        signals.stop_if_told();
        signals.is_to_end()
    };
    let wait = match (args.no_wait, args.timeout) {
        (true, _) => Wait::NEVER,
        (_, Some(limit)) => Wait::at_most(limit).through_outages(limit),
        (_, None) => Wait::FOREVER,
    };
    if verbose && !wait.is_once() {
        // Only a first try tells whether there is anything to wait for.
        match target.acquire(&Wait::NEVER.unless(&is_to_end)) {
            Ok(Err(report)) if report == Answer::Recovering => {
                complain(&format!("Waiting for {target}. {report}"));
            }
            Ok(Err(report)) if report == Answer::Busy => complain(&match target.held_by() {
                Ok(Some(holder)) => format!("Waiting for {target} ({holder})."),
                _ => format!("Waiting for {target}. {report}"),
            }),
            // The wait decides whether it may begin in an outage.
            Err(error) if error.is_outage() => {}
            ended => return Ok(ended?),
        }
    }
    let tell = |why: &Error| complain(&format!("Waiting for the server of {target}. {why}"));
    let wait = wait.unless(&is_to_end).on_outage(&tell);
    target.acquire(&wait).map_err(|error| match error.kind() {
        ErrorKind::Deadlock => deadlock(target),
        _ => error.into(),
    })
}

fn deadlock(target: &Target) -> CliError {
    let text = format!(
        "{target} is held by the `memlock run` around this one, whose command would wait for itself. If \
         that command does not wait for this one to end, limit the wait: --timeout."
    );
    CliError::new(Status::USAGE, text)
}

/// The answer when it was not acquired.
fn not_acquired(
    args: &Run,
    target: &Target,
    report: Report,
    signals: Signals,
) -> Result<Status, CliError> {
    match report.answer() {
        Answer::Busy => busy(args, || match target.held_by() {
            Ok(Some(holder)) => format!("{target} is busy: {holder}."),
            _ => report.to_string(),
        }),
        // Not what --conflict-exit-code is about: nobody may have the lock.
        Answer::Recovering => Err(CliError::new(Status::BUSY, report)),
        Answer::TimedOut => {
            let (recovers, limit) = (target.recovers(), brief(args.timeout.unwrap_or_default()));
            match target.held_by() {
                Ok(Some(holder)) => busy(args, || {
                    format!("Timed out after {limit} waiting for {target} ({holder}).")
                }),
                // Nor is an outage in which the wait ended.
                Err(error) if error.is_outage() => Err(CliError::new(
                    Status::UNREACHABLE,
                    format!("Timed out after {limit} waiting for {target}. {error}"),
                )),
                _ if recovers => Err(CliError::new(Status::BUSY, report)),
                _ => busy(args, || report.to_string()),
            }
        }
        _ => {
            if let Some(came) = signals.next_ending() {
                signals.suffer(came.signal);
                return Ok(Status::of_signal(came.signal));
            }
            busy(args, || format!("The wait for {target} was interrupted."))
        }
    }
}

/// The answer when another holder has it. Where that is no failure, or is not to be reported,
/// nothing is said.
fn busy(args: &Run, message: impl FnOnce() -> String) -> Result<Status, CliError> {
    let status = Status(args.conflict_exit_code);
    if args.quiet || status == Status::OK {
        return Ok(status);
    }
    Err(CliError::new(status, message()))
}

/// Starts the command in our process group, with the signals as we found them.
fn start(args: &Run, held: &Held, signals: Signals, around: &Around) -> io::Result<pid_t> {
    let (program, arguments) = args.command().split_first().ok_or(io::ErrorKind::NotFound)?;
    let mut command = Command::new(program);
    command.args(arguments).env("MEMLOCK_NAME", &args.name);
    command.env(around::TOKENS, around.and(held.token()));
    let numbers = [("MEMLOCK_FENCE", held.fence()), ("MEMLOCK_DEADLINE", held.deadline(args))];
    for (variable, number) in numbers {
        match number {
            Some(number) => command.env(variable, number.to_string()),
            // Not that of a lock around ours.
            None => command.env_remove(variable),
        };
    }
    let (terminate, parent) = (args.on_lost == OnLost::Terminate, signals::own_pid());
    let addressed = Addressed::of(&command)?;
    // SAFETY: between fork and exec only prctl, getppid, signal, pthread_sigmask, getpid and execvpe run, which
    // are async-signal-safe; nothing is allocated.
    unsafe {
        command.pre_exec(move || {
            // If we are killed, nothing renews the lock, and nothing else could end the command.
            if terminate
                && libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) == 0
                && libc::getppid() != parent
            {
                return Err(io::ErrorKind::Interrupted.into());
            }
            signals.restore()?;
            addressed.as_ref().map_or(Ok(()), |addressed| Err(addressed.exec()))
        });
    }
    let child = command.spawn()?;
    pid_t::try_from(child.id()).map_err(io::Error::other)
}

/// Releases it. True when it was lost.
fn give_back(held: &mut Held, target: &Target, signals: Signals, lost_before: bool) -> bool {
    match held.release(signals) {
        _ if lost_before => true,
        Ok(Release::Released) => {
            if held.was_in_doubt() {
                complain(&format!(
                    "{target} was released, but not at once: the server did not answer. If it had lost it \
                     before, that is not known."
                ));
            }
            false
        }
        Ok(_) => {
            complain(&format!(
                "{target} was lost while the command ran: another holder may have had it meanwhile."
            ));
            true
        }
        Err(error) => {
            complain(&format!(
                "{target} could not be released: it ends with its lease, unless the server has lost it already. {error}"
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

fn not_started(args: &Run, error: &io::Error) -> CliError {
    let given = args.command().first().map(OsString::as_os_str).unwrap_or_default();
    let program = shown(given.as_bytes());
    // A URL without `--url` in front of it.
    let program = if program.contains("://") { without_password(&program) } else { program };
    match error.kind() {
        io::ErrorKind::NotFound => match program::found(given) {
            None => {
                CliError::new(Status::NO_COMMAND, format!("The command {program} was not found."))
            }
            Some(file) => CliError::new(
                Status::NOT_EXECUTABLE,
                format!("The command {program} cannot be executed: {}.", program::needs(&file)),
            ),
        },
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => system(NOT_STARTED, error),
        _ if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
            system(NOT_STARTED, error)
        }
        _ => CliError::new(
            Status::NOT_EXECUTABLE,
            format!("The command {program} cannot be executed: {error}."),
        ),
    }
}

fn system(what: &str, error: &io::Error) -> CliError {
    CliError::new(Status::SYSTEM, format!("{what}: {error}."))
}
