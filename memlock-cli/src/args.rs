//! What can be written on the command line.

use std::ffi::OsString;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, ArgGroup, Args as ClapArgs, Error, Parser, Subcommand, ValueEnum};

use memlock_core::store::without_password;

use crate::duration;

/// Locks, semaphores and distinct lists for the shell, on memcached, Redis, PostgreSQL, MySQL or in a
/// file of this host.
#[derive(Debug, Parser)]
#[command(name = "memlock", version, max_term_width = 100, arg_required_else_help = true)]
pub(crate) struct Args {
    /// Where the locks are: memcached://host[:port][,host2…][?parameters], redis://…, postgresql://…
    /// or mysql://…, the same on every host; or sqlite:///path, for one host and without a server.
    /// MEMLOCK_URL_FILE names a file with the URL [default: memcached://127.0.0.1:11211]
    #[arg(long, global = true, env = "MEMLOCK_URL", hide_env_values = true, value_name = "URL")]
    pub(crate) url: Option<OsString>,
    /// Say on standard error what happens; twice: everything
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// No longer text in the wrong place is quoted.
const LONGEST_QUOTED: usize = 40;

/// Parses the command line.
///
/// # Errors
/// Help and versions too. The tips are only those that help.
pub(crate) fn parse() -> Result<Args, Error> {
    Args::try_parse().map_err(|mut error| {
        let is_unknown = error.kind() == ErrorKind::UnknownArgument;
        if is_unknown && is_of_run(&error) {
            // clap's own would make a name or a command of what was meant as an option.
            let tip = "options of `memlock run` stand before the command; a NAME that begins with '-' stands behind '--'";
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
        }
        hide_passwords(&mut error);
        error
    })
}

/// clap quotes what stands in the wrong place, such as a URL without `--url` in front of it, or a key.
fn hide_passwords(error: &mut Error) {
    for kind in [ContextKind::InvalidArg, ContextKind::InvalidSubcommand, ContextKind::InvalidValue]
    {
        if let Some(ContextValue::String(text)) = error.get(kind)
            && (text.len() > LONGEST_QUOTED || text.contains(['@', '=', ':', '\n']))
        {
            let shown = without_password(text);
            error.insert(kind, ContextValue::String(shown));
            // It may quote the same text.
            error.insert(ContextKind::Suggested, ContextValue::None);
        }
    }
}

fn is_of_run(error: &Error) -> bool {
    error.get(ContextKind::Usage).is_some_and(|usage| usage.to_string().contains("memlock run"))
}

/// An option of `memlock run` that was the way to ask for what it does by default now.
pub(crate) fn gone(error: &Error) -> Option<&str> {
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(option))
            if is_of_run(error) && error.kind() == ErrorKind::UnknownArgument =>
        {
            let option = option.as_str();
            matches!(option, "-r" | "--renew" | "-k" | "--kill-on-lost").then_some(option)
        }
        _ => None,
    }
}

/// What to do; each says for itself what it is.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Run),
    Doctor(Doctor),
    Show(Show),
    Ls(Ls),
    Release(Release),
    Resize(Resize),
    List(List),
    Bench(Bench),
    Completions(Completions),
    #[command(hide = true)]
    Pages(Pages),
}

/// Run a command under a lock, or with permits of a semaphore.
///
/// The lock is taken, the command is run, and the lock is released when the command ends. It is
/// renewed for as long as the command runs; if it is lost all the same, the command and all that it
/// has started are ended. The exit status is the command's own, 128+n if it was ended by signal n,
/// unless there is something else to say: see EXIT STATUS.
///
/// Every host must use the same server, by --url or MEMLOCK_URL: a lock on a host's own server does
/// not exclude other hosts. Without either, the server is memcached://127.0.0.1:11211, which is a
/// different one on each host. Where all programs run on one host, a file needs no server:
/// --url sqlite:///var/lib/app/locks.db.
///
/// The command finds MEMLOCK_NAME, MEMLOCK_TOKENS (what runs around each other hold), MEMLOCK_FENCE (a
/// number that rises from holder to holder; not for semaphores) and MEMLOCK_DEADLINE (until when the
/// lock is held at most, in Unix seconds; only with --no-renew or --max-hold) in its environment.
/// Without --timeout, a run that would wait for one around it ends at once. Processes that the
/// command leaves in the background when it ends go on without the lock; but if a signal ended the
/// command, they are ended, too. Options of `memlock run` stand before the command; what stands behind the command's
/// name is the command's, with or without `--` before it.
#[derive(Debug, ClapArgs)]
#[command(group(ArgGroup::new("wanted").multiple(true)))]
#[command(override_usage = "memlock run [OPTIONS] <NAME> [--] <COMMAND>...", after_help = EXIT_STATUS)]
pub(crate) struct Run {
    /// The name of the lock or semaphore: any bytes. Put `--` before a name that begins with `-`
    pub(crate) name: OsString,
    /// How long the lock outlives `memlock run`, should that be killed; with --no-renew, how long
    /// it is held at most [default: 60s, or the URL's guard= if that is shorter]
    #[arg(long, value_parser = duration::parse, value_name = "TIME")]
    pub(crate) lease: Option<Duration>,
    /// Wait at most this long for it; without this and --no-wait, for as long as it takes
    #[arg(
        short = 'w',
        long,
        visible_alias = "wait",
        value_parser = duration::parse,
        value_name = "TIME"
    )]
    pub(crate) timeout: Option<Duration>,
    /// Try once
    #[arg(short, long, conflicts_with = "timeout")]
    pub(crate) no_wait: bool,
    /// NAME is a semaphore with so many permits, of which one is taken, or as many as --permits
    /// says
    #[arg(short, long, group = "wanted", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) semaphore: Option<u32>,
    /// What to do if the semaphore has another number of permits than --semaphore says
    #[arg(long, value_enum, default_value_t = OnMismatch::Follow, value_name = "ACTION", requires = "semaphore")]
    pub(crate) mismatch: OnMismatch,
    /// Take so many permits at once; without --semaphore, of a semaphore that exists already
    #[arg(short, long, group = "wanted", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) permits: Option<u32>,
    /// Priority among the waiters for permits: higher comes first
    #[arg(long, value_name = "N", allow_negative_numbers = true, requires = "wanted")]
    pub(crate) priority: Option<i64>,
    /// Do not renew the lease: the lock is lost when it is over
    #[arg(long)]
    pub(crate) no_renew: bool,
    /// Renew it no more after this, so that a command that hangs does not hold it for ever. The
    /// lease is no longer than this either
    #[arg(long, value_parser = duration::parse_above_zero, value_name = "TIME", conflicts_with = "no_renew")]
    pub(crate) max_hold: Option<Duration>,
    /// What becomes of the command when the lock is lost while it runs
    #[arg(long, value_enum, default_value_t = OnLost::Terminate, value_name = "ACTION")]
    pub(crate) on_lost: OnLost,
    /// How long what is to end may take after TERM
    #[arg(long, default_value = "5s", value_parser = duration::parse, value_name = "TIME")]
    pub(crate) grace: Duration,
    /// The exit status when another holder has it; with 0, nothing is said then
    #[arg(short = 'E', long, default_value_t = 75, value_name = "STATUS")]
    pub(crate) conflict_exit_code: u8,
    /// Do not say that another holder has it, that the semaphore has another number of permits, nor
    /// that the default server locks this host only
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Run {
    /// The command and its arguments.
    pub(crate) fn command(&self) -> &[OsString] {
        // Behind a NAME that itself stands behind `--`, another one is an argument to the parser.
        match &self.command[..] {
            [dashes, command @ ..] if dashes == "--" && !command.is_empty() => command,
            command => command,
        }
    }
}

/// What becomes of a command whose lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// It and all that it has started get TERM, and KILL after the grace
    Terminate,
    /// It goes on, and another holder may run beside it
    Continue,
}

/// What to do about another number of permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnMismatch {
    /// Go on with the semaphore's number, and say so
    Follow,
    /// Give the semaphore this number, for all clients, as `memlock resize` does
    Resize,
    /// Do not run the command: the exit status is 64
    Refuse,
}

/// Check whether the servers are fit for locks, and say how to make them so.
///
/// Each is connected to and asked for its version and settings; its clock and round trips are
/// measured; and a lock is passed from one client of ours to another, to see whether wake-ups are
/// heard. The exit status is 0 if all is well, 1 if something should be mended, 2 if locks cannot
/// be trusted there, 69 if a server cannot be reached.
#[derive(Debug, ClapArgs)]
pub(crate) struct Doctor {
    /// The longest lease that is in use [default: the URL's guard=, or 60s]
    #[arg(long, value_parser = duration::parse, value_name = "TIME")]
    pub(crate) lease: Option<Duration>,
    /// Write JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Only print the statements that create what memlock needs in a database, by its scheme or URL
    #[arg(long, value_name = "SCHEME|URL", conflicts_with = "json")]
    pub(crate) print_schema: Option<String>,
}

/// Show what exists by a name, its holders and its waiters.
///
/// The result is already past: it is for people, not for decisions. The fence is the greatest that
/// the holder can have: it has exactly this one on a memcached before 1.6.24, unless its lease was
/// renewed, or a client began to wait. The exit status is 0, held or free.
///
/// A lock, a semaphore and a list of one name may live on different servers. What could not be read
/// is said on standard error, and in JSON in `unread`; the rest is shown, and the exit status is
/// 69.
#[derive(Debug, ClapArgs)]
pub(crate) struct Show {
    /// The name of a lock, semaphore or list
    pub(crate) name: OsString,
    /// Write JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// List all locks, semaphores and distinct lists that live on the servers.
///
/// The servers are asked for all their keys (lru_crawler metadump), of which only those under the
/// URL's prefix are read. Of a name that is longer than some 190 bytes the key has only a hash,
/// which is shown instead. If some servers cannot be reached, that is said on standard error, what
/// lives on the others is listed, and the exit status is 69.
#[derive(Debug, ClapArgs)]
pub(crate) struct Ls {
    /// Write JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Take a lock away from a holder that is known to be dead.
///
/// Only the holder that is seen loses it, never a later one. On a terminal you are asked before.
/// The exit status is 0 if it was taken away, 1 if it has no holder or you said no, 64 if an option
/// is missing, 66 if there is no such semaphore, 75 if it has changed hands meanwhile.
#[derive(Debug, ClapArgs)]
pub(crate) struct Release {
    /// The name of the lock or semaphore
    pub(crate) name: OsString,
    /// Without this nothing is done
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// NAME is a semaphore
    #[arg(short, long)]
    pub(crate) semaphore: bool,
    /// Which of a semaphore's holders, as `memlock show` tells them; needed if there are several
    #[arg(long, requires = "semaphore")]
    pub(crate) token: Option<String>,
}

/// Give a semaphore another number of permits, for all clients.
///
/// If more are held than there are to be, no holder loses any, and none are granted until enough
/// have come back. Commands under `memlock run --semaphore` follow, whatever number they give. The
/// exit status is 66 if there is no such semaphore.
#[derive(Debug, ClapArgs)]
pub(crate) struct Resize {
    /// The name of the semaphore
    pub(crate) name: OsString,
    /// How many permits there are to be
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) permits: u32,
}

/// A distinct list: a set of keys with ids, shared by all clients that know the session's name.
///
/// Keys are the lines of standard input; empty ones are left out. For each, `insert` writes its id,
/// `new` or `old`, and the key, between tabs: as soon as no more keys are there to be read, and
/// after a thousand of them at the latest. Without an action, the number of ids that were given out
/// is written.
#[derive(Debug, ClapArgs)]
pub(crate) struct List {
    /// The session's name
    pub(crate) session: OsString,
    /// What to do
    #[arg(value_enum)]
    pub(crate) action: Option<Action>,
    /// With set-up: for how long the list lasts
    #[arg(long = "for", default_value = "1d", value_parser = duration::parse, value_name = "TIME")]
    pub(crate) lasts: Duration,
    /// With insert: write only the keys that are new, and nothing else
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) new: bool,
    /// With insert: write nothing
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Keys end with NUL instead of a line's end, in and out
    #[arg(short = '0', long)]
    pub(crate) null: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Action {
    /// Set it up, or join it
    SetUp,
    /// Insert keys from standard input
    Insert,
    /// Write all ids and keys
    Ids,
    /// End it for all clients
    TearDown,
}

/// Measure locks on the servers, next to a round trip.
///
/// Measures the shortest request to the server; locking and unlocking without contention; and the
/// time from one client's release to the next one's entry, where several want the same lock again
/// and again. The contenders are threads of this process, each of which is in the server's queue as
/// another process would be.
#[derive(Debug, ClapArgs)]
pub(crate) struct Bench {
    /// How long each line of the table is measured
    #[arg(long, default_value = "2s", value_parser = duration::parse, value_name = "TIME")]
    pub(crate) time: Duration,
    /// How many contend in the last line, at most 1000
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=1000))]
    pub(crate) contenders: u16,
    /// How long they hold the lock
    #[arg(long, default_value = "1ms", value_parser = duration::parse, value_name = "TIME")]
    pub(crate) hold: Duration,
    /// Write JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Write the completions of a shell to standard output.
#[derive(Debug, ClapArgs)]
pub(crate) struct Completions {
    /// For which shell
    pub(crate) shell: clap_complete::Shell,
}

/// Write the manual pages.
#[derive(Debug, ClapArgs)]
pub(crate) struct Pages {
    /// Where to
    pub(crate) folder: OsString,
}

/// Also in the manual page.
pub(crate) const EXIT_STATUS: &str = "\
Exit status:
  the command's, or 128+n if signal n ended it
   64  the command line, the name or a duration cannot be used
   66  there is no such semaphore or list
   69  the server cannot be reached, or does not answer
   70  a bug in memlock: please report it
   71  the system refused something, such as another process or descriptor
   74  standard input or output broke
   75  another holder has it (-E chooses another)
   76  the server cannot be used for locks: `memlock doctor` says why
   78  the URL cannot be used
   79  the lock was lost while the command ran
  126  the command cannot be executed
  127  the command was not found";
