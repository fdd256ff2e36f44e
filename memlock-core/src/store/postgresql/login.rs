//! Logging in: the startup message and the password.

use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::frontend;

use super::settings::Settings;
use super::wire::{Complaint, Wire, nonsense, unwritable};
use super::{errors, passwords};
use crate::error::{Error, Result};
use crate::store::Failure;
use crate::store::remote::{Address, Patience};
use crate::store::url::HIDDEN;

/// Logs in. Returns the id of the server's process as the server tells it; a pooler tells another
/// number.
pub(super) fn login(wire: &mut Wire, address: &Address, settings: &Settings) -> Result<i32> {
    let parameters = [
        ("user", settings.user.as_str()),
        ("database", settings.database.as_str()),
        ("application_name", "memlock"),
        ("client_encoding", "UTF8"),
    ];
    frontend::startup_message(parameters, &mut wire.out).map_err(|_| unwritable())?;
    send(wire)?;
    // As messages show it.
    let mut user = if settings.may_be_token() { HIDDEN } else { &settings.user };
    let mut patience = Patience::default();
    let mut process = 0;
    let mut scram: Option<ScramSha256> = None;
    loop {
        let frame = wire.next(&mut patience)?;
        let body = wire.body(frame).to_vec();
        wire.done(frame);
        match frame.tag {
            b'R' => {
                let (kind, data) = body.split_first_chunk::<4>().ok_or_else(nonsense)?;
                match i32::from_be_bytes(*kind) {
                    // A user who was let in without a password is no token.
                    0 if user == HIDDEN => (user, wire.secret) = (&settings.user, None),
                    0 => {}
                    3 => {
                        let password = password(wire, address, settings, &mut user)?;
                        frontend::password_message(password.as_bytes(), &mut wire.out)
                            .map_err(|_| unwritable())?;
                        send(wire)?;
                    }
                    5 => {
                        let salt = data.try_into().map_err(|_| nonsense())?;
                        let password = password(wire, address, settings, &mut user)?;
                        let hash = md5_hash(settings.user.as_bytes(), password.as_bytes(), salt);
                        frontend::password_message(hash.as_bytes(), &mut wire.out)
                            .map_err(|_| unwritable())?;
                        send(wire)?;
                    }
                    10 => {
                        let mut names = data.split(|&byte| byte == 0);
                        if scram.is_some() || !names.any(|name| name == SCRAM_SHA_256.as_bytes()) {
                            return Err(unknown_method());
                        }
                        let password = password(wire, address, settings, &mut user)?;
                        let begun =
                            ScramSha256::new(password.as_bytes(), ChannelBinding::unsupported());
                        frontend::sasl_initial_response(
                            SCRAM_SHA_256,
                            begun.message(),
                            &mut wire.out,
                        )
                        .map_err(|_| unwritable())?;
                        scram = Some(begun);
                        send(wire)?;
                    }
                    11 => {
                        let begun = scram.as_mut().ok_or_else(nonsense)?;
                        begun.update(data).map_err(|_| nonsense())?;
                        frontend::sasl_response(begun.message(), &mut wire.out)
                            .map_err(|_| unwritable())?;
                        send(wire)?;
                    }
                    12 => {
                        let begun = scram.as_mut().ok_or_else(nonsense)?;
                        begun.finish(data).map_err(|_| {
                            Error::protocol(
                                "The server cannot prove that it knows the password: it is not the one that you \
                                 mean.",
                            )
                        })?;
                    }
                    _ => return Err(unknown_method()),
                }
            }
            b'K' => {
                let (id, _) = body.split_first_chunk::<4>().ok_or_else(nonsense)?;
                process = i32::from_be_bytes(*id);
            }
            b'E' => {
                let said = Complaint::parse(&body, wire.secret.as_ref());
                return Err(errors::of(&said, &settings.schema, user));
            }
            b'Z' => return Ok(process),
            // A newer protocol was offered: none is.
            b'v' => {}
            _ => return Err(nonsense()),
        }
    }
}

/// The password that the server asks for, which is then what messages must not show.
fn password<'a>(
    wire: &mut Wire,
    address: &Address,
    settings: &'a Settings,
    user: &mut &'a str,
) -> Result<String> {
    let of_file = || passwords::of_file(&address.place, &settings.database, &settings.user);
    let Some(password) = settings.password.clone().or_else(of_file) else {
        return Err(Error::config(format!(
            "The server asks the user {user:?} for a password: write postgresql://user:password@host/database, \
             or set PGPASSWORD, or write it into ~/.pgpass."
        )));
    };
    (*user, wire.secret) = (&settings.user, Some(password.clone()));
    Ok(password.0)
}

fn send(wire: &mut Wire) -> Result<()> {
    wire.send().map_err(|failure: Failure| failure.error)
}

fn unknown_method() -> Error {
    Error::config(
        "The server asks for a proof of identity that memlock does not know: it knows trust, password, md5 and \
         scram-sha-256 in pg_hba.conf.",
    )
}
