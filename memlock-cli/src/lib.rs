//! `memlock`: locks on a memcached for the shell. Each command has a file.
//!
//! This is a library only for the sake of the binary beside it and of the fuzz targets: it has
//! nothing for other programs.
//!
//! | file | what it is |
//! | --- | --- |
//! | `args` | what can be written on the command line |
//! | `run`, `run/` | a command under a lock: `held` the lock, `signals`, `tree` all that the command has started |
//! | `show`, `release`, `resize`, `ls`, `list` | looking at what there is, and changing it |
//! | `doctor`, `doctor/` | whether a server is fit for locks |
//! | `bench` | how fast it is here |
//! | `measure` | what the measuring commands share |
//! | `connect` | the URL, and the client of its servers |
//! | `exit`, `out`, `duration`, `log` | exit statuses, writing to the terminal, times, `--verbose` |
//! | `text` | names and server text, escaped so that they can be printed |
//! | `pages` | the manual pages and completions |

// What is fuzzed calls this crate by its name.
#[cfg(test)]
extern crate self as memlock_cli;

mod args;
mod bench;
mod connect;
mod doctor;
mod duration;
mod exit;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod list;
mod log;
mod ls;
mod measure;
mod out;
mod pages;
mod release;
mod resize;
mod run;
mod show;
mod text;

use std::process::ExitCode;

use args::{Args, Command};
use connect::Url;
use exit::{CliError, Status};

/// Does what the command line says.
pub fn main() -> ExitCode {
    let args = match args::parse() {
        Ok(args) => args,
        // Help and versions come this way too, and are no mistakes.
        Err(error) => {
            if let Some(option) = args::gone(&error) {
                out::complain(&format!(
                    "The option {option} is gone: `memlock run` renews the lock and ends the command when it is lost. \
                     --no-renew and --on-lost=continue say otherwise."
                ));
                return Status::USAGE.into();
            }
            return match error.print() {
                _ if error.use_stderr() => Status::USAGE,
                Ok(()) => Status::OK,
                Err(error) => failed(&error.into()),
            }
            .into();
        }
    };
    log::begin(args.verbose);
    let status = command(args).unwrap_or_else(|error| failed(&error));
    out::finish();
    status.into()
}

fn failed(error: &CliError) -> Status {
    if !error.message.is_empty() {
        out::complain(&error.message);
    }
    error.status
}

fn command(args: Args) -> Result<Status, CliError> {
    let Args { url, verbose, command } = args;
    let url = || Url::new(url);
    match command {
        Command::Run(args) => run::run(&url()?, &args, verbose > 0),
        Command::Show(args) => show::show(&url()?, &args),
        Command::Ls(args) => ls::ls(&url()?, &args),
        Command::Release(args) => release::release(&url()?, &args),
        Command::Resize(args) => resize::resize(&url()?, &args),
        Command::List(args) => list::list(&url()?, &args),
        Command::Bench(args) => bench::bench(&url()?, &args),
        Command::Doctor(args::Doctor { print_schema: Some(scheme), .. }) => {
            doctor::print_schema(&scheme)
        }
        Command::Doctor(args) => doctor::doctor(&url()?, &args),
        Command::Completions(args) => pages::completions(&args),
        Command::Pages(args) => pages::pages(&args),
    }
}
