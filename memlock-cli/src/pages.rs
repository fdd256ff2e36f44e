//! The manual pages and completions, made from what the command line knows of itself.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use clap::CommandFactory;
use clap::builder::Resettable;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::args::{Args, Completions, EXIT_STATUS, Pages};
use crate::exit::{CliError, Status};

/// What else `memlock(1)` says.
const ENVIRONMENT: &str = "\
MEMLOCK_URL: where the locks are, unless --url says so; every host must name the same server. MEMLOCK_URL_FILE: a file whose first line is the URL, for URLs with passwords. MEMLOCK_NAME, MEMLOCK_TOKENS, MEMLOCK_FENCE and MEMLOCK_DEADLINE are set for \
the command of `memlock run`. NO_COLOR: no colours, also on a terminal.";
const EXAMPLES: [(&str, &str); 5] = [
    (
        "Run a job on one host only, and not at all where it runs already:",
        "memlock run nightly --no-wait --max-hold 2h /usr/local/bin/nightly",
    ),
    (
        "At most three downloads at once, on all hosts:",
        "memlock run mirror --semaphore 3 rsync -a source: /srv/mirror",
    ),
    (
        "Work on each line once, however many hosts read it:",
        "memlock list today insert --new < urls | xargs -n1 fetch",
    ),
    ("Who has it?", "memlock show nightly"),
    ("Is this server fit for locks?", "memlock doctor --url memcached://cache:11211"),
];

/// Writes the completions of one shell.
pub(crate) fn completions(args: &Completions) -> Result<Status, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut offered(), "memlock", &mut script);
    io::stdout().write_all(&script)?;
    Ok(Status::OK)
}

/// The command line without what is hidden, which the scripts of some shells would offer too.
fn offered() -> clap::Command {
    let all = Args::command();
    let commands = all.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    clap::Command::new("memlock")
        .version(memlock_core::VERSION)
        .args(all.get_arguments().cloned())
        .subcommands(commands)
}

/// Writes memlock.1, and one page for each command.
pub(crate) fn pages(args: &Pages) -> Result<Status, CliError> {
    let mut built = Args::command();
    built.build();
    for command in built
        .get_subcommands()
        .filter(|command| !command.is_hide_set() && command.get_name() != "help")
    {
        let name = format!("memlock-{}", command.get_name());
        let mut more = Roff::new();
        if command.get_after_help().is_some() {
            more.control("SH", ["EXIT STATUS"]).control("nf", []);
            more.text(
                EXIT_STATUS
                    .lines()
                    .skip(1)
                    .map(|line| roman(format!("{line}\n")))
                    .collect::<Vec<_>>(),
            );
            more.control("fi", []);
        }
        more.control("SH", ["SEE ALSO"]).text([bold("memlock"), roman("(1)")]);
        let command =
            command.clone().display_name(&name).bin_name(format!("memlock {}", command.get_name()));
        write(args, &name, command.after_help(Resettable::Reset), more)?;
    }
    let mut more = Roff::new();
    more.control("SH", ["ENVIRONMENT"]).text([roman(ENVIRONMENT)]);
    more.control("SH", ["EXAMPLES"]);
    for (what, line) in EXAMPLES {
        more.control("PP", []).text([roman(what)]);
        more.control("RS", ["4"])
            .control("nf", [])
            .text([roman(line)])
            .control("fi", [])
            .control("RE", []);
    }
    write(args, "memlock", Args::command().disable_help_subcommand(true), more)?;
    Ok(Status::OK)
}

fn write(args: &Pages, name: &str, command: clap::Command, more: Roff) -> Result<(), CliError> {
    let mut page = Vec::new();
    let source = format!("memlock {}", memlock_core::VERSION);
    Man::new(command)
        .title(name.to_uppercase())
        .source(source)
        .manual("memlock")
        .render(&mut page)?;
    more.to_writer(&mut page)?;
    let path = Path::new(&args.folder).join(format!("{name}.1"));
    let written = fs::write(&path, page);
    written.map_err(|error| {
        CliError::new(Status::IO, format!("{} cannot be written: {error}.", path.display()))
    })
}
