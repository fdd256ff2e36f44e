//! `memlock release --force`: takes a lock, or permits, away from a holder that is known to be
//! dead.

use std::io::{self, BufRead, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;

use memlock_core::Client;
use memlock_core::lease::MIN_LEASE;

use crate::args::Release;
use crate::connect::{Url, connect, is_quorum, missing};
use crate::exit::{CliError, Status};
use crate::out::complain;
use crate::show::holder_of;
use crate::text::{printable, shown};
use crate::votes::process;

pub(crate) fn release(url: &Url, args: &Release) -> Result<Status, CliError> {
    if !args.force {
        return Err(CliError::new(
            Status::USAGE,
            "Only who holds a lock can give it back: --force takes it away from a holder that is known to be dead.",
        ));
    }
    let client = connect(url)?;
    if args.semaphore { permits(&client, args) } else { lock(&client, args) }
}

fn lock(client: &Client, args: &Release) -> Result<Status, CliError> {
    let name = shown(args.name.as_bytes());
    let mutex = client.mutex(args.name.as_bytes(), MIN_LEASE)?;
    if let Some(missing) = missing(client) {
        complain(&format!("Nobody holds {name}. {missing}"));
        return Ok(Status::NO);
    }
    let Some(owner) = mutex.owner()? else {
        complain(&if has_permits_out(client, args)? {
            format!(
                "Nobody holds the lock {name}; permits of the semaphore {name} are taken away with --semaphore."
            )
        } else {
            format!("Nobody holds {name}.")
        });
        return Ok(Status::NO);
    };
    if !agreed(args, &format!("{name} is held by {}.", holder_of(&owner)))? {
        return Ok(Status::NO);
    }
    if mutex.force_unlock(&owner.token())? {
        return Ok(Status::OK);
    }
    Err(CliError::new(
        Status::BUSY,
        format!("{name} has changed hands meanwhile; nothing was taken away."),
    ))
}

/// Whether the semaphore of that name may be what is meant. If it cannot be read, that does not
/// concern a request for the lock.
fn has_permits_out(client: &Client, args: &Release) -> Result<bool, CliError> {
    if is_quorum(client) {
        return Ok(false);
    }
    let semaphore = client.open_semaphore(args.name.as_bytes(), MIN_LEASE)?;
    let status = semaphore.status().ok().flatten();
    Ok(status.is_some_and(|status| !status.holders.is_empty()))
}

fn permits(client: &Client, args: &Release) -> Result<Status, CliError> {
    let name = shown(args.name.as_bytes());
    let semaphore = client.open_semaphore(args.name.as_bytes(), MIN_LEASE)?;
    if let Some(missing) = missing(client) {
        return Err(CliError::new(
            Status::NOT_FOUND,
            format!("There is no semaphore {name}. {missing}"),
        ));
    }
    let Some(status) = semaphore.status()? else {
        return Err(CliError::new(Status::NOT_FOUND, format!("There is no semaphore {name}.")));
    };
    let holders: Vec<_> = status
        .holders
        .iter()
        .filter(|holder| args.token.as_ref().is_none_or(|token| *token == holder.token.to_string()))
        .collect();
    let holder = match holders[..] {
        [] => {
            complain(&format!("Nobody holds permits of {name}, or nobody by that token."));
            return Ok(Status::NO);
        }
        [holder] => holder,
        _ => {
            return Err(CliError::new(
                Status::USAGE,
                format!(
                    "{name} has {} holders: say which one by --token, as `memlock show` tells them.",
                    holders.len()
                ),
            ));
        }
    };
    let by = process(&holder.host, holder.pid);
    if !agreed(args, &format!("{} of {name} are held by {by}.", holder.permits))? {
        return Ok(Status::NO);
    }
    if semaphore.force_release(holder.token)? {
        return Ok(Status::OK);
    }
    Err(CliError::new(Status::BUSY, format!("These permits of {name} were given back meanwhile.")))
}

/// Whether it is really to be done.
fn agreed(args: &Release, what: &str) -> Result<bool, CliError> {
    if args.yes {
        return Ok(true);
    }
    if !io::stdin().is_terminal() {
        return Err(CliError::new(
            Status::USAGE,
            format!("{what} Say --yes to take it away without being asked."),
        ));
    }
    write!(io::stderr(), "{} It may still be at work. Take it away? [y/N] ", printable(what))?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
