//! Exit statuses: those of sysexits.h where one fits, and those of the shells for what became of a
//! command.

use std::fmt;
use std::process::ExitCode;

use memlock_core::{Error, ErrorKind};

/// With which status `memlock` ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub u8);

impl Status {
    /// Done.
    pub(crate) const OK: Status = Status(0);
    /// An ordinary "no": there is no holder, there is something to mend.
    pub(crate) const NO: Status = Status(1);
    /// `doctor`: a server that is not fit for locks.
    pub(crate) const UNFIT: Status = Status(2);
    /// EX_USAGE: the command line, a name or a duration cannot be used.
    pub(crate) const USAGE: Status = Status(64);
    /// EX_NOINPUT: no such semaphore or list.
    pub(crate) const NOT_FOUND: Status = Status(66);
    /// EX_UNAVAILABLE: the server cannot be reached, or did not answer.
    pub(crate) const UNREACHABLE: Status = Status(69);
    /// EX_SOFTWARE: a bug.
    pub(crate) const BUG: Status = Status(70);
    /// EX_OSERR: the system refused something.
    pub(crate) const SYSTEM: Status = Status(71);
    /// EX_IOERR: standard input or output broke.
    pub(crate) const IO: Status = Status(74);
    /// EX_TEMPFAIL: another holder has it. `run -E` chooses another.
    pub(crate) const BUSY: Status = Status(75);
    /// EX_PROTOCOL: the server cannot be used for locks.
    pub(crate) const PROTOCOL: Status = Status(76);
    /// EX_CONFIG: the URL cannot be used.
    pub(crate) const CONFIG: Status = Status(78);
    /// It was lost while the command ran. The first number beyond those of sysexits.h, so that it
    /// means nothing else.
    pub(crate) const LOST: Status = Status(79);
    /// The command was found and could not be executed.
    pub(crate) const NOT_EXECUTABLE: Status = Status(126);
    /// The command was not found.
    pub(crate) const NO_COMMAND: Status = Status(127);

    /// What shells say of a command that ended by this signal.
    pub(crate) fn of_signal(signal: i32) -> Status {
        Status(u8::try_from(signal).map_or(255, |signal| signal.saturating_add(128)))
    }
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> ExitCode {
        ExitCode::from(status.0)
    }
}

/// Why a command ends: a whole sentence, and a status.
#[derive(Debug)]
pub(crate) struct CliError {
    pub(crate) status: Status,
    pub(crate) message: String,
}

impl CliError {
    pub(crate) fn new(status: Status, message: impl fmt::Display) -> CliError {
        CliError { status, message: message.to_string() }
    }
}

impl From<Error> for CliError {
    fn from(error: Error) -> CliError {
        let status = match error.kind() {
            ErrorKind::Invalid => Status::USAGE,
            ErrorKind::Unreachable | ErrorKind::Unknown => Status::UNREACHABLE,
            ErrorKind::Protocol => Status::PROTOCOL,
            ErrorKind::Config => Status::CONFIG,
            ErrorKind::NotFound => Status::NOT_FOUND,
            ErrorKind::Interrupted => Status::BUSY,
            _ => Status::BUG,
        };
        CliError::new(status, error)
    }
}

impl From<std::io::Error> for CliError {
    fn from(error: std::io::Error) -> CliError {
        // The reader has gone: no reason to complain.
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return CliError::new(Status::of_signal(libc::SIGPIPE), "");
        }
        CliError::new(Status::IO, format!("Standard input or output broke: {error}."))
    }
}
