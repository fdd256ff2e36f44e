//! Logging in: the server's greeting, and its challenges, answered by the `mysql_common` crate.

use std::collections::HashMap;

use mysql_common::auth::plugins::{AuthProc, ChallengeResponsePlugin, Context, Response};
use mysql_common::constants::CapabilityFlags;
use mysql_common::crypto::der;
use mysql_common::io::ParseBuf;
#[cfg(feature = "tls")]
use mysql_common::packets::SslRequest;
use mysql_common::packets::{AuthPlugin, AuthSwitchRequest, HandshakePacket, HandshakeResponse};
use mysql_common::proto::MySerialize;

use super::errors;
use super::packets::{CAPABILITIES, Wire, out_of_step, refusal};
use super::settings::Settings;
use crate::error::{Error, Result};
use crate::store::remote::Patience;
#[cfg(feature = "tls")]
use crate::store::remote::Socket;

const MAX_PACKET: u32 = 16 * 1024 * 1024;
/// utf8mb4_general_ci.
#[cfg(feature = "tls")]
const CHARACTER_SET: u8 = 45;
/// The length of a challenge.
const SCRAMBLE: usize = 20;
/// More packets than any login needs.
const MOST_STEPS: usize = 8;
/// The longest password that fits into one block of the shortest key.
const SHORTEST_KEY: usize = 128;
const PADDING: usize = 43;

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

/// Encrypts a connection whose server agrees.
#[cfg(feature = "tls")]
pub(super) type Encrypt<'a> = &'a dyn Fn(Socket) -> Result<Socket>;

/// What the answers to challenges are made of.
struct Answers<'a> {
    password: &'a [u8],
    transport: Transport,
    scramble: Vec<u8>,
}

impl Context for &Answers<'_> {
    fn pass(&self) -> &[u8] {
        self.password
    }

    fn is_ipc_transport(&self) -> bool {
        self.transport == Transport::Unix
    }

    fn is_tls_transport(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.transport == Transport::Tls;
        #[cfg(not(feature = "tls"))]
        false
    }

    fn scramble(&self) -> &[u8] {
        &self.scramble
    }

    fn server_key_pem(&self) -> Option<&[u8]> {
        None
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
    let greeting = parse_greeting(&greeting, settings)?;
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
    let mut answers = Answers { password: password.as_bytes(), transport, scramble: Vec::new() };
    let mut scramble = greeting.nonce();
    scramble.truncate(SCRAMBLE);
    answers.scramble = scramble;
    let offered = greeting.auth_plugin_name_ref().map(AuthPlugin::from_bytes);
    let plugin = offered.filter(is_usable).unwrap_or(AuthPlugin::MysqlNativePassword);
    let mut procedure = begin(&plugin)?;
    let challenge = answers.scramble.clone();
    let answer = run(&mut procedure, &answers, &challenge)?;
    if greeting.capabilities().contains(CapabilityFlags::CLIENT_CONNECT_ATTRS) {
        capabilities |= CapabilityFlags::CLIENT_CONNECT_ATTRS;
    }
    let attributes = [("_client_name", "memlock"), ("program_name", "memlock")];
    let attributes: HashMap<_, _> =
        attributes.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let response = HandshakeResponse::new(
        Some(answer.data().unwrap_or_default().to_vec()),
        (5, 7, 0),
        Some(settings.account.user.as_bytes()),
        Some(settings.database.as_bytes()),
        Some(plugin.borrow()),
        capabilities,
        capabilities.contains(CapabilityFlags::CLIENT_CONNECT_ATTRS).then_some(attributes),
        MAX_PACKET,
    );
    let mut packet = Vec::new();
    response.serialize(&mut packet);
    wire.send(&packet).map_err(|failure| failure.error)?;
    answer_challenges(&mut wire, settings, &mut answers, procedure, &mut patience)?;
    Ok(wire)
}

fn answer_challenges(
    wire: &mut Wire,
    settings: &Settings,
    answers: &mut Answers<'_>,
    mut procedure: AuthProc,
    patience: &mut Patience,
) -> Result<()> {
    for _ in 0..MOST_STEPS {
        let payload = wire.read(patience)?.to_vec();
        let answer = match payload.split_first() {
            Some((&OK, _)) => return Ok(()),
            Some((&ERROR, _)) => {
                return Err(errors::of_refusal(&refusal(&payload), settings.engine));
            }
            Some((&SWITCH, _)) => {
                let switch: AuthSwitchRequest<'_> =
                    ParseBuf(&payload).parse(()).map_err(|_| out_of_step())?;
                let plugin = switch.auth_plugin();
                procedure = begin(&plugin)?;
                let mut challenge = switch.plugin_data().to_vec();
                challenge.truncate(SCRAMBLE);
                answers.scramble.clone_from(&challenge);
                run(&mut procedure, answers, &challenge)?
            }
            Some((&MORE, challenge)) => {
                if challenge.starts_with(b"-----BEGIN") {
                    check_key(challenge, answers.password)?;
                }
                run(&mut procedure, answers, challenge)?
            }
            _ => return Err(out_of_step()),
        };
        if let Some(data) = answer.data() {
            wire.send(data).map_err(|failure| failure.error)?;
        }
    }
    Err(out_of_step())
}

/// A password is never sent as it is, except over TLS and Unix sockets.
fn is_usable(plugin: &AuthPlugin<'_>) -> bool {
    matches!(
        plugin,
        AuthPlugin::MysqlNativePassword
            | AuthPlugin::CachingSha2Password
            | AuthPlugin::Sha256Password
    )
}

fn begin(plugin: &AuthPlugin<'_>) -> Result<AuthProc> {
    let refused = || {
        Error::config(format!(
            "The server asks for the authentication {:?}, which memlock does not support: let the user of the \
             URL be identified by caching_sha2_password or mysql_native_password.",
            String::from_utf8_lossy(plugin.as_bytes())
        ))
    };
    if is_usable(plugin) { plugin.init().map_err(|_| refused()) } else { Err(refused()) }
}

fn run(procedure: &mut AuthProc, answers: &Answers<'_>, challenge: &[u8]) -> Result<Response> {
    let is_key_expected = challenge.starts_with(b"-----BEGIN");
    // The third step of the two procedures with keys parses a key, which is checked before.
    if !is_key_expected && challenge.len() > SCRAMBLE {
        return Err(out_of_step());
    }
    procedure.run(answers, challenge).map_err(|error| {
        Error::config(format!("The server's challenge to the user cannot be answered: {error}."))
    })
}

fn parse_greeting<'a>(payload: &'a [u8], settings: &Settings) -> Result<HandshakePacket<'a>> {
    if payload.first() == Some(&ERROR) {
        return Err(errors::of_refusal(&refusal(payload), settings.engine));
    }
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
            greeting.server_version_str()
        )));
    }
    Ok(greeting)
}

/// Refuses a key that the crate could not parse or use, for which it would panic.
fn check_key(pem: &[u8], password: &[u8]) -> Result<()> {
    let bad = || Error::protocol("The server sent a public key that is none.");
    let (key, kind) = der::pem_to_der(pem).map_err(|_| bad())?;
    let modulus = modulus(&key, kind == der::PubKeyFileType::Pkcs8).ok_or_else(bad)?;
    if !(SHORTEST_KEY..=2048).contains(&modulus) {
        return Err(bad());
    }
    if password.len() + PADDING > modulus {
        return Err(Error::config("The password is too long for the server's public key."));
    }
    Ok(())
}

/// The length of the modulus of a key, in bytes.
fn modulus(key: &[u8], is_wrapped: bool) -> Option<usize> {
    const INTEGER: u8 = 0x02;
    const BITS: u8 = 0x03;
    const SEQUENCE: u8 = 0x30;
    let (mut inner, _) = element(key, SEQUENCE)?;
    if is_wrapped {
        let (_, rest) = element(inner, SEQUENCE)?;
        let (bits, _) = element(rest, BITS)?;
        let (0, key) = bits.split_first()? else { return None };
        (inner, _) = element(key, SEQUENCE)?;
    }
    let (modulus, rest) = element(inner, INTEGER)?;
    let (exponent, _) = element(rest, INTEGER)?;
    let modulus = modulus.strip_prefix(&[0]).unwrap_or(modulus);
    let is_sound = modulus.first().is_some_and(|&first| first >= 0x80) && exponent.len() <= 8;
    is_sound.then_some(modulus.len())
}

/// The contents of the next element, and what follows it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&found, rest) = bytes.split_first()?;
    let (&length, rest) = rest.split_first()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        0x81..=0x83 => {
            let (digits, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
            (digits.iter().fold(0, |length, &digit| length << 8 | usize::from(digit)), rest)
        }
        _ => return None,
    };
    (found == tag).then(|| rest.split_at_checked(length))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: &[u8] = b"-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAxSKOcxiet8lLMn8ImyUE
bGGKob5EdRz/4wdiw12ED0GfKKTKhVnodFCfm1mdy7bKOX5QxL9skrvYodpW43eR
R5bfOzIgy1qIB8RYb6qOXRBw1oA4snBDqtUjDv/lbHLJN+IbzM4oU+e3Lt9rXyLX
VY289ewONPweXHqSCnTL91w+wkU1peIFV2QhZ+upUCdCtwOn5hnJPNgxtbklFoya
C8W3Z7Xx7He2QDJsEWAqX197efw0L6j8X8Tyd8Uwb7zUB1tfMGhHfm9EwejPAtzx
4GztQNtNMtGS2oGZLQBLV9hib4dDL92iiZeckg2LAf4GsJofLLR8mcHCRoqVbQJ1
YQIDAQAB
-----END PUBLIC KEY-----";

    fn answer_with(key: &[u8], password: &[u8]) -> Result<Response> {
        check_key(key, password)?;
        let answers =
            Answers { password, transport: Transport::Plain, scramble: vec![7; SCRAMBLE] };
        let mut procedure = begin(&AuthPlugin::CachingSha2Password)?;
        run(&mut procedure, &answers, &[1; SCRAMBLE])?;
        run(&mut procedure, &answers, &[4])?;
        run(&mut procedure, &answers, key)
    }

    #[test]
    fn a_password_is_sent_encrypted() {
        let answer = answer_with(KEY, b"secret").unwrap();
        assert_eq!(answer.data().map(<[u8]>::len), Some(256));
        assert!(answer_with(KEY, &[b'a'; 213]).is_ok());
        assert!(answer_with(KEY, &[b'a'; 214]).is_err());
    }

    #[test]
    fn a_password_is_never_sent_as_it_is() {
        for plugin in [&b"mysql_clear_password"[..], b"mysql_old_password", b"dialog"] {
            let error = begin(&AuthPlugin::from_bytes(plugin)).unwrap_err();
            assert!(error.to_string().contains("does not support"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_key_breaks_the_login(place in 27..KEY.len(), byte: u8, cut in 0..KEY.len()) {
            let mut key = KEY.to_vec();
            key[place] = byte;
            let _ = answer_with(&key, b"secret");
            let _ = answer_with(&KEY[..cut], b"secret");
        }

        #[test]
        fn no_greeting_breaks_the_login(bytes: Vec<u8>, version in "[ -~]{0,9}", rest in prop::collection::vec(any::<u8>(), 31..80)) {
            let settings = Settings::for_tests();
            let _ = parse_greeting(&bytes, &settings).map(|greeting| greeting.nonce());
            let whole = [&[10], version.as_bytes(), &[0], &rest].concat();
            let _ = parse_greeting(&whole, &settings).map(|greeting| greeting.nonce());
        }
    }
}
