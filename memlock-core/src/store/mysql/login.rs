//! Logging in: the server's greeting, and its challenges, answered by the `mysql_common` crate.

use std::collections::HashMap;

use mysql_common::auth::plugins::caching_sha2_password::scramble_sha256;
use mysql_common::auth::plugins::mysql_native_password::scramble_native;
use mysql_common::constants::CapabilityFlags;
use mysql_common::io::ParseBuf;
#[cfg(feature = "tls")]
use mysql_common::packets::SslRequest;
use mysql_common::packets::{AuthPlugin, AuthSwitchRequest, HandshakePacket, HandshakeResponse};
use mysql_common::proto::MySerialize;

use super::errors;
use super::key;
use super::packets::{CAPABILITIES, Wire, out_of_step};
use super::settings::Settings;
use crate::error::{Error, Result};
use crate::store::remote::Patience;
#[cfg(feature = "tls")]
use crate::store::remote::Socket;
use crate::store::said::Said;
use crate::store::url::Secret;

const MAX_PACKET: u32 = 16 * 1024 * 1024;
/// utf8mb4_general_ci.
#[cfg(feature = "tls")]
const CHARACTER_SET: u8 = 45;
/// The length of a challenge.
const SCRAMBLE: usize = 20;
/// What is shown of the name of a method or a version.
const LONGEST_NAME: usize = 100;
/// More packets than any login needs.
const MOST_STEPS: usize = 8;

const OK: u8 = 0x00;
const MORE: u8 = 0x01;
const SWITCH: u8 = 0xfe;
const ERROR: u8 = 0xff;

/// How the connection is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    /// The server is on this host.
    Unix,
    Plain,
    #[cfg(feature = "tls")]
    Tls,
}

impl Transport {
    fn is_encrypted(self) -> bool {
        #[cfg(feature = "tls")]
        return self == Transport::Tls;
        #[cfg(not(feature = "tls"))]
        false
    }
}

/// Encrypts a connection whose server agrees.
#[cfg(feature = "tls")]
pub(super) type Encrypt<'a> = &'a dyn Fn(Socket) -> Result<Socket>;

/// How the user is authenticated, and what the answers are made of.
struct Authentication<'a> {
    method: Method,
    password: &'a [u8],
    transport: Transport,
    challenge: [u8; SCRAMBLE],
}

/// The methods that are known. The password is sent as it is by none of them, except over TLS and Unix
/// sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Native,
    CachingSha2,
    Sha256,
}

impl Method {
    fn of(plugin: &AuthPlugin<'_>) -> Option<Method> {
        match plugin {
            AuthPlugin::MysqlNativePassword => Some(Method::Native),
            AuthPlugin::CachingSha2Password => Some(Method::CachingSha2),
            AuthPlugin::Sha256Password => Some(Method::Sha256),
            _ => None,
        }
    }

    fn plugin(self) -> AuthPlugin<'static> {
        match self {
            Method::Native => AuthPlugin::MysqlNativePassword,
            Method::CachingSha2 => AuthPlugin::CachingSha2Password,
            Method::Sha256 => AuthPlugin::Sha256Password,
        }
    }
}

impl Authentication<'_> {
    /// The first answer to a challenge.
    fn begin(&mut self, method: Method, challenge: &[u8]) -> Result<Vec<u8>> {
        let challenge = challenge.get(..SCRAMBLE).and_then(|bytes| bytes.try_into().ok());
        (self.method, self.challenge) = (method, challenge.ok_or_else(out_of_step)?);
        let answer = match method {
            Method::Native => scramble_native(&self.challenge, self.password).map(Vec::from),
            Method::CachingSha2 => scramble_sha256(&self.challenge, self.password).map(Vec::from),
            Method::Sha256 if self.password.is_empty() || self.transport.is_encrypted() => {
                Some(self.plain())
            }
            // A request for the key.
            Method::Sha256 => Some(vec![1]),
        };
        Ok(answer.unwrap_or_default())
    }

    /// The answer to what the server sends then, if there is one.
    fn go_on(&self, sent: &[u8]) -> Result<Option<Vec<u8>>> {
        const IS_KNOWN: &[u8] = &[3];
        const IS_NEW: &[u8] = &[4];
        match (self.method, sent) {
            (Method::CachingSha2, IS_KNOWN) => Ok(None),
            (Method::CachingSha2, IS_NEW) if self.transport != Transport::Plain => {
                Ok(Some(self.plain()))
            }
            // A request for the key.
            (Method::CachingSha2, IS_NEW) => Ok(Some(vec![2])),
            (Method::CachingSha2 | Method::Sha256, pem) if pem.starts_with(b"-----BEGIN") => {
                key::encrypt(self.password, &self.challenge, pem).map(Some)
            }
            _ => Err(out_of_step()),
        }
    }

    fn plain(&self) -> Vec<u8> {
        [self.password, &[0]].concat()
    }
}

/// Logs in.
pub(super) fn login(
    mut wire: Wire,
    settings: &Settings,
    transport: Transport,
    #[cfg(feature = "tls")] encrypt: Option<Encrypt<'_>>,
) -> Result<Wire> {
    let mut patience = Patience::default();
    let greeting = wire.read(&mut patience)?.to_vec();
    if greeting.first() == Some(&ERROR) {
        return Err(errors::of_refusal(&wire.refusal(), settings.engine));
    }
    let greeting = parse_greeting(&greeting, wire.secret.as_ref())?;
    let mut capabilities = CAPABILITIES;
    #[cfg(feature = "tls")]
    let transport = match encrypt {
        None => transport,
        Some(encrypt) => {
            if !greeting.capabilities().contains(CapabilityFlags::CLIENT_SSL) {
                return Err(Error::config(
                    "The server does not encrypt connections: set up TLS there, or leave tls out of the URL.",
                ));
            }
            capabilities |= CapabilityFlags::CLIENT_SSL;
            let mut request = Vec::new();
            SslRequest::new(capabilities, MAX_PACKET, CHARACTER_SET).serialize(&mut request);
            wire.send(&request).map_err(|failure| failure.error)?;
            if !wire.socket.unread().is_empty() {
                return Err(out_of_step());
            }
            wire = wire.map(encrypt)?;
            Transport::Tls
        }
    };
    let password = settings.account.password.as_ref().map_or("", |password| &password.0);
    let mut authentication = Authentication {
        method: Method::Native,
        password: password.as_bytes(),
        transport,
        challenge: [0; SCRAMBLE],
    };
    let offered = greeting.auth_plugin_name_ref().map(AuthPlugin::from_bytes);
    let method = offered.as_ref().and_then(Method::of).unwrap_or(Method::Native);
    let answer = authentication.begin(method, &greeting.nonce())?;
    if greeting.capabilities().contains(CapabilityFlags::CLIENT_CONNECT_ATTRS) {
        capabilities |= CapabilityFlags::CLIENT_CONNECT_ATTRS;
    }
    let attributes = [("_client_name", "memlock"), ("program_name", "memlock")];
    let attributes: HashMap<_, _> =
        attributes.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let response = HandshakeResponse::new(
        Some(answer),
        (5, 7, 0),
        Some(settings.account.user.as_bytes()),
        Some(settings.database.as_bytes()),
        Some(method.plugin()),
        capabilities,
        capabilities.contains(CapabilityFlags::CLIENT_CONNECT_ATTRS).then_some(attributes),
        MAX_PACKET,
    );
    let mut packet = Vec::new();
    response.serialize(&mut packet);
    wire.send(&packet).map_err(|failure| failure.error)?;
    answer_challenges(&mut wire, settings, authentication, &mut patience)?;
    Ok(wire)
}

fn answer_challenges(
    wire: &mut Wire,
    settings: &Settings,
    mut authentication: Authentication<'_>,
    patience: &mut Patience,
) -> Result<()> {
    for _ in 0..MOST_STEPS {
        let payload = wire.read(patience)?.to_vec();
        let answer = match payload.split_first() {
            Some((&OK, _)) => {
                // A user who was let in without a password is no token.
                wire.secret.clone_from(&settings.account.password);
                return Ok(());
            }
            Some((&ERROR, _)) => {
                let is_encrypted = authentication.transport.is_encrypted();
                return Err(errors::of_login(&wire.refusal(), settings.engine, is_encrypted));
            }
            Some((&SWITCH, _)) => {
                let switch: AuthSwitchRequest<'_> =
                    ParseBuf(&payload).parse(()).map_err(|_| out_of_step())?;
                let plugin = switch.auth_plugin();
                let method = Method::of(&plugin)
                    .ok_or_else(|| unsupported(&plugin, wire.secret.as_ref()))?;
                Some(authentication.begin(method, switch.plugin_data())?)
            }
            Some((&MORE, sent)) => authentication.go_on(sent)?,
            _ => return Err(out_of_step()),
        };
        if let Some(answer) = answer {
            wire.send(&answer).map_err(|failure| failure.error)?;
        }
    }
    Err(out_of_step())
}

fn unsupported(plugin: &AuthPlugin<'_>, secret: Option<&Secret>) -> Error {
    Error::config(format!(
        "The server asks for the authentication {:?}, which memlock does not support: let the user of the URL \
         be identified by caching_sha2_password or mysql_native_password.",
        Said::new(&String::from_utf8_lossy(plugin.as_bytes()), LONGEST_NAME, secret)
    ))
}

fn parse_greeting<'a>(payload: &'a [u8], secret: Option<&Secret>) -> Result<HandshakePacket<'a>> {
    let strange = || Error::protocol("What answers there is no MySQL or MariaDB.");
    if payload.first() != Some(&10) {
        return Err(strange());
    }
    // The length of the challenge, which the parser takes for a signed number.
    let version = payload.iter().skip(1).position(|&byte| byte == 0).ok_or_else(strange)?;
    let length = payload.get(version + 2 + 20).ok_or_else(strange)?;
    if *length > 100 {
        return Err(strange());
    }
    let greeting: HandshakePacket<'_> = ParseBuf(payload).parse(()).map_err(|_| strange())?;
    if !greeting.capabilities().contains(
        CapabilityFlags::CLIENT_PROTOCOL_41
            | CapabilityFlags::CLIENT_PLUGIN_AUTH
            | CapabilityFlags::CLIENT_SECURE_CONNECTION
            | CapabilityFlags::CLIENT_MULTI_STATEMENTS,
    ) {
        return Err(Error::protocol(format!(
            "The server {:?} does not take several statements at once: it is too old, or a proxy forbids them.",
            Said::new(&greeting.server_version_str(), LONGEST_NAME, secret)
        )));
    }
    Ok(greeting)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn authentication(transport: Transport) -> Authentication<'static> {
        let challenge = [0; SCRAMBLE];
        Authentication { method: Method::Native, password: b"secret", transport, challenge }
    }

    #[test]
    fn a_password_is_sent_as_it_is_only_over_private_transports() {
        let contains = |answer: &[u8]| answer.windows(6).any(|bytes| bytes == b"secret");
        for transport in [Transport::Unix, Transport::Plain] {
            for method in [Method::Native, Method::CachingSha2, Method::Sha256] {
                let mut authentication = authentication(transport);
                let first = authentication.begin(method, &[9; SCRAMBLE + 1]).unwrap();
                let next = authentication.go_on(&[4]).ok().flatten().unwrap_or_default();
                let is_sent = contains(&first) || contains(&next);
                assert_eq!(
                    is_sent,
                    transport == Transport::Unix && method == Method::CachingSha2,
                    "{method:?}"
                );
            }
        }
        for name in [&b"mysql_clear_password"[..], b"mysql_old_password", b"dialog"] {
            assert_eq!(Method::of(&AuthPlugin::from_bytes(name)), None);
        }
    }

    proptest! {
        #[test]
        fn nothing_that_is_sent_breaks_the_login(
            bytes: Vec<u8>, version in "[ -~]{0,9}", rest in prop::collection::vec(any::<u8>(), 31..80),
        ) {
            let _ = parse_greeting(&bytes, None).map(|greeting| greeting.nonce());
            let whole = [&[10], version.as_bytes(), &[0], &rest].concat();
            let _ = parse_greeting(&whole, None).map(|greeting| greeting.nonce());
            for method in [Method::Native, Method::CachingSha2, Method::Sha256] {
                let mut authentication = authentication(Transport::Plain);
                let _ = authentication.begin(method, &bytes);
                let _ = authentication.go_on(&bytes);
            }
        }
    }
}
