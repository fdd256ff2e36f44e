//! What can be written on the command line.

use std::ffi::OsString;
use std::time::Duration;

use clap::{ArgAction, ArgGroup, Args as ClapArgs, Parser, Subcommand, ValueEnum};

use crate::when;

/// Where the locks are unless somebody says otherwise.
const DEFAULT_URL: &str = "memcached://127.0.0.1:11211";

/// Locks, semaphores and distinct lists on a memcached, for the shell.
#[derive(Debug, Parser)]
#[command(name = "memlock", version, max_term_width = 100, arg_required_else_help = true)]
pub(crate) struct Args {
    /// Where the locks are: memcached://host[:port][,host2…][?parameters]
    #[arg(long, global = true, env = "MEMLOCK_URL", hide_env_values = true, default_value = DEFAULT_URL, value_name = "URL")]
    url: String,
    /// Say on standard error what happens; twice: everything
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Args {
    /// The URL; an empty one is none.
    pub(crate) fn url(&self) -> String {
        if self.url.is_empty() { DEFAULT_URL.to_owned() } else { self.url.clone() }
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
/// The lock is taken, the command is run, and the lock is given back when the command ends. The exit status is the command's
/// own, 128+n if it was ended by signal n, unless there is something else to say: see EXIT STATUS.
///
/// The command finds MEMLOCK_NAME, MEMLOCK_FENCE (a number that rises from holder to holder; not for semaphores) and
/// MEMLOCK_DEADLINE (until when the lock is certainly held, in Unix seconds; not with --renew, unless --max-hold sets an end) in its
/// environment. What it leaves running in the background when it ends is on its own, without the lock; but if a signal ended it, so
/// is all that it has started.
#[derive(Debug, ClapArgs)]
#[command(group(ArgGroup::new("wanted").multiple(true)))]
#[command(override_usage = "memlock run [OPTIONS] <NAME> -- <COMMAND>...", after_help = EXIT_STATUS)]
pub(crate) struct Run {
    /// The name of the lock or semaphore: any bytes
    pub(crate) name: OsString,
    /// The longest the lock is held unless it is renewed: after this a dead holder's lock is free
    #[arg(long, default_value = "60s", value_parser = when::parse, value_name = "TIME")]
    pub(crate) lease: Duration,
    /// Wait at most this long for it; without this and --no-wait, for as long as it takes
    #[arg(short, long, value_parser = when::parse, value_name = "TIME")]
    pub(crate) wait: Option<Duration>,
    /// Try once
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// NAME is a semaphore with so many permits, of which one is taken, or as many as --permits says
    #[arg(short, long, group = "wanted", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) semaphore: Option<u32>,
    /// Take so many permits at once; without --semaphore, of a semaphore that somebody has set up
    #[arg(short, long, group = "wanted", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) permits: Option<u32>,
    /// Among those who wait for permits, higher comes first
    #[arg(long, value_name = "N", allow_negative_numbers = true, requires = "wanted")]
    pub(crate) priority: Option<i64>,
    /// Renew the lease for as long as the command runs
    #[arg(short, long)]
    pub(crate) renew: bool,
    /// Renew it no more after this, so that a command that hangs does not hold it for ever. The lease is no longer than this either
    #[arg(long, value_parser = when::parse, value_name = "TIME", requires = "renew")]
    pub(crate) max_hold: Option<Duration>,
    /// End the command, and all that it has started, when the lock is lost: TERM, and KILL after the grace
    #[arg(short, long)]
    pub(crate) kill_on_lost: bool,
    /// How long what is to end may take after TERM
    #[arg(long, default_value = "5s", value_parser = when::parse, value_name = "TIME")]
    pub(crate) grace: Duration,
    /// The exit status when somebody else has it
    #[arg(short = 'E', long, default_value_t = 75, value_name = "STATUS")]
    pub(crate) conflict_exit_code: u8,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Judge whether the servers are fit for locks, and say how to make them so.
///
/// Each is connected to and asked for its version and settings; its clock and round trips are measured; and a lock is passed from one
/// client of ours to another, to see whether bells are heard. The exit status is 0 if all is well, 1 if something should be mended,
/// 2 if locks cannot be trusted there, 69 if a server cannot be reached.
#[derive(Debug, ClapArgs)]
pub(crate) struct Doctor {
    /// The longest lease that is in use
    #[arg(long, default_value = "60s", value_parser = when::parse, value_name = "TIME")]
    pub(crate) lease: Duration,
    /// Write JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show what there is by a name, who holds it and who waits.
///
/// What is shown is already past: it is for people, not for decisions. The fence is told as the greatest that the holder can have: it has
/// exactly this one on a memcached before 1.6.24, unless its lease was renewed, or somebody began to wait. The exit status is 0, held or free.
///
/// A lock, a semaphore and a list of one name may live on different servers. What could not be read is said on standard error, and in JSON
/// in `unread`; the rest is shown, and the exit status is 69.
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
/// The servers are asked for all their keys (lru_crawler metadump), of which only those under the URL's prefix are read. Of a name that is
/// longer than some 190 bytes the key has only a hash, which is shown instead. If some servers cannot be reached, that is said on standard
/// error, what lives on the others is listed, and the exit status is 69.
#[derive(Debug, ClapArgs)]
pub(crate) struct Ls {
    /// Write JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Take a lock away from a holder that is known to be dead.
///
/// Only the holder that is seen loses it: nobody who took it meanwhile. On a terminal you are asked before. The exit status is 0 if it was
/// taken away, 1 if nobody holds it or you said no, 75 if it has changed hands meanwhile.
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

/// Give a semaphore another number of permits, for everybody.
///
/// If more are held than there are to be, nobody loses any, and none are given out until enough have come back. `memlock run --semaphore` is to
/// say the new number from then on. The exit status is 66 if there is no such semaphore.
#[derive(Debug, ClapArgs)]
pub(crate) struct Resize {
    /// The name of the semaphore
    pub(crate) name: OsString,
    /// How many permits there are to be
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) permits: u32,
}

/// A distinct list: a set of keys with ids that is shared by all who know the session's name.
///
/// Keys are the lines of standard input; empty ones are left out. For each, `insert` writes its id, `new` or `old`, and the key, between tabs:
/// as soon as no more keys are there to be read, and after a thousand of them at the latest.
/// Without an action, the number of ids that were given out is written.
#[derive(Debug, ClapArgs)]
pub(crate) struct List {
    /// The session's name
    pub(crate) session: OsString,
    /// What to do
    #[arg(value_enum)]
    pub(crate) action: Option<Action>,
    /// With set-up: for how long the list lasts
    #[arg(long = "for", default_value = "1d", value_parser = when::parse, value_name = "TIME")]
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
    /// End it for everybody
    TearDown,
}

/// Measure locks on the servers, next to a round trip.
///
/// What is measured: the shortest question to the server; taking a lock that nobody wants and giving it back; and the time from one's release
/// to the next one's entry, where several want the same lock again and again. The contenders are threads of this process, each of
/// which stands in the server's queue as another process would.
#[derive(Debug, ClapArgs)]
pub(crate) struct Bench {
    /// How long each line of the table is measured
    #[arg(long, default_value = "2s", value_parser = when::parse, value_name = "TIME")]
    pub(crate) time: Duration,
    /// How many contend in the last line, at most 1000
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=1000))]
    pub(crate) contenders: u16,
    /// How long they hold the lock
    #[arg(long, default_value = "1ms", value_parser = when::parse, value_name = "TIME")]
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
   71  the system refused something, such as another process or descriptor
   74  standard input or output broke
   75  somebody else has it (-E chooses another)
   76  the server cannot be used for locks: `memlock doctor` says why
   78  the URL cannot be used
   79  the lock was lost while the command ran
  126  the command cannot be executed
  127  the command was not found";
