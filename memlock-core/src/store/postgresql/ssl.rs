//! TLS, as `sslmode` says.

use std::sync::Arc;

#[cfg(feature = "tls")]
use postgres_protocol::message::frontend;

use super::promises::SERVER;
#[cfg(feature = "tls")]
use super::wire::{Wire, nonsense};
use crate::clock::Clock;
#[cfg(feature = "tls")]
use crate::error::ErrorKind;
use crate::error::{Error, Result};
use crate::store::remote::{Address, Socket};
#[cfg(feature = "tls")]
use crate::store::remote::{Patience, Place};
#[cfg(feature = "tls")]
use crate::store::tls::{Files, Tls, Trust};
use crate::store::url::{Secret, Url};

/// Whether and how connections are encrypted.
#[derive(Debug)]
pub(super) struct Ssl {
    /// Whether a server without TLS is refused.
    #[cfg(feature = "tls")]
    is_required: bool,
    /// `None`: never.
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

impl Ssl {
    /// Takes the parameters from the URL, and reads the files that they name. The words are those of
    /// PostgreSQL's own programs; `allow`, which would try without TLS first, is taken as `prefer`.
    #[cfg(feature = "tls")]
    pub(super) fn take(url: &mut Url) -> Result<Ssl> {
        let mode = url.take("sslmode");
        let mut files = Files::take(url, ["sslrootcert", "sslcert", "sslkey"])?;
        let has_ca = files.ca.is_some();
        // It would be used by none of the connections that it is meant to secure.
        if let (None, Some(path)) = (&mode, &files.ca) {
            let why = "needs sslmode, without which the server is not verified: add sslmode=verify-full, or \
                       verify-ca for any host name.";
            return Err(url.bad_parameter("sslrootcert", path, why));
        }
        // The host's authorities.
        files.ca = files.ca.filter(|path| path != "system");
        let trust = match mode.as_deref() {
            Some("disable") => return Ok(Ssl { is_required: false, tls: None }),
            None | Some("allow" | "prefer") => Trust::Anybody,
            Some("require") if !has_ca => Trust::Anybody,
            Some("require" | "verify-ca") => Trust::Authority,
            Some("verify-full") => Trust::Name,
            Some(_) => return Err(unknown(url, mode.as_deref())),
        };
        let is_required = !matches!(mode.as_deref(), None | Some("allow" | "prefer"));
        Ok(Ssl { is_required, tls: Some(Tls::new(trust, &files)?) })
    }

    /// Takes the parameter from the URL.
    #[cfg(not(feature = "tls"))]
    pub(super) fn take(url: &mut Url) -> Result<Ssl> {
        match url.take("sslmode").as_deref() {
            None | Some("disable" | "allow" | "prefer") => Ok(Ssl {}),
            other => Err(unknown(url, other)),
        }
    }

    /// Connects, and encrypts the connection if it is to be, or can be.
    /// `secret`: what errors may quote.
    #[cfg_attr(not(feature = "tls"), allow(unused_variables, reason = "the server says nothing"))]
    pub(super) fn connect(
        &self,
        address: &Address,
        clock: &Arc<dyn Clock>,
        secret: Option<Secret>,
    ) -> Result<Socket> {
        #[cfg(feature = "tls")]
        let began = clock.now();
        let socket = Socket::connect(address, SERVER, clock)?;
        #[cfg(feature = "tls")]
        if let (Some(tls), Place::Tcp(..)) = (&self.tls, &address.place) {
            let mut wire = Wire::new(socket, secret);
            let in_time = || clock.now().since(began) < address.settings.connect_timeout;
            return match accepts(&mut wire)? {
                true => match wire.socket.encrypt(tls, address) {
                    // One that was waited for in vain would be waited for again.
                    Err(error) if !self.is_required && error.is_outage() && in_time() => {
                        log::debug!("Without TLS, after: {error}");
                        Socket::connect(address, SERVER, clock)
                    }
                    encrypted => encrypted,
                },
                false if self.is_required => Err(Error::new(
                    ErrorKind::Config,
                    "The server has no TLS, and the URL's sslmode asks for it: turn ssl on there.",
                )),
                false => Ok(wire.socket),
            };
        }
        Ok(socket)
    }
}

fn unknown(url: &Url, mode: Option<&str>) -> Error {
    let known = if cfg!(feature = "tls") {
        "disable, allow, prefer, require, verify-ca or verify-full"
    } else {
        "disable, allow or prefer, since this memlock was built without TLS"
    };
    url.bad_parameter("sslmode", mode.unwrap_or_default(), &format!("is not one of {known}."))
}

/// Asks the server whether it has TLS.
#[cfg(feature = "tls")]
fn accepts(wire: &mut Wire) -> Result<bool> {
    frontend::ssl_request(&mut wire.out);
    wire.send().map_err(|failure| failure.error)?;
    wire.socket.read_more(&mut Patience::default())?;
    // Whatever else has come is not encrypted, and must not be taken for a part of what is.
    let accepts = match wire.socket.unread() {
        b"S" => true,
        b"N" => false,
        // A server that cannot start another session says so at once.
        [b'E', ..] => {
            let mut patience = Patience::default();
            let frame = wire.next(&mut patience)?;
            let said = super::wire::Complaint::parse(wire.body(frame), wire.secret.as_ref());
            return Err(Error::new(
                ErrorKind::Unreachable,
                format!("The server refuses the connection: {}", said.text.shown().escape_debug()),
            ));
        }
        _ => return Err(nonsense()),
    };
    wire.socket.consume(1);
    Ok(accepts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_those_of_libpq() {
        let take =
            |text: &str| Ssl::take(&mut Url::parse(&format!("postgresql://u@h?{text}")).unwrap());
        for good in ["sslmode=disable", "sslmode=prefer", ""] {
            assert!(take(good).is_ok(), "{good}");
        }
        for bad in ["sslmode=yes", "sslmode=verify-full&sslrootcert=/nothing"] {
            assert!(take(bad).is_err(), "{bad}");
        }
        #[cfg(feature = "tls")]
        {
            assert!(take("sslmode=require").unwrap().is_required);
            for (bad, parameter) in [
                ("sslcert=/x", "only one of sslcert"),
                ("sslrootcert=/nothing", "parameter sslrootcert"),
            ] {
                let error = take(&format!("sslmode=require&{bad}")).err().unwrap().to_string();
                assert!(error.contains(parameter), "{error}");
            }
            for ca in ["sslrootcert=/nothing", "sslrootcert=system"] {
                let error = take(ca).err().unwrap().to_string();
                assert!(error.contains("add sslmode=verify-full"), "{error}");
                assert!(take(&format!("{ca}&sslmode=prefer")).is_ok());
            }
        }
    }
}
