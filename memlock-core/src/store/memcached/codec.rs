//! Commands to bytes, and replies back.
//!
//! Replies are parsed by the `memcache` crate's codec, except the two simplest. Commands are
//! written here, directly into the packet: the crate's builders make about ten small allocations
//! for each, which cost 2 % of a lock+unlock pair in `make bench`. A [`Key`] is valid on the wire
//! by its type, and versions, TTLs and opaques are numbers, so no user input reaches a command line
//! unchecked.

use std::time::Duration;

use memcache::exp::{self, MetaResponse, ReturnCode, parse_meta_result};

use crate::error::{Error, Result};
use crate::name::{Key, push_number};
use crate::store::{Item, Reply, Stored};

use super::command::Command;
use super::handshake::Bound;
use super::life::Life;
use super::ttl::Ttl;

/// memcached treats a TTL of more seconds than this as an absolute Unix time.
pub(super) const LONGEST_RELATIVE_TTL: u64 = 30 * 24 * 3600;

/// Appends one command, marked with `opaque`, to `out`. `server_time` returns the server's own Unix
/// time, for a TTL that has to be absolute.
pub(super) fn encode(
    command: &Command<'_>,
    opaque: u32,
    server_time: impl Fn(Bound) -> u64,
    out: &mut Vec<u8>,
) -> Result<()> {
    // The classic commands, whose replies have neither a version nor an opaque. On a meta command,
    // a server without room removes the item that was to grow, even a lock that is held. The
    // classic commands leave it unchanged.
    let (verb, key, value) = match *command {
        Command::Append { key, value } => return grow(b"append ", key, value, out),
        Command::Prepend { key, value } => return grow(b"prepend ", key, value, out),
        Command::Classic { key, cas, flags, value, ttl } => {
            let exptime = wire_ttl(ttl, server_time)?;
            let verb: &[u8] = if cas.is_some() { b"cas " } else { b"add " };
            let numbers = [u64::from(flags), exptime, value.len() as u64];
            return classic(verb, key, numbers, cas, value, out);
        }
        Command::Add { key, value, .. } | Command::CompareAndSet { key, value, .. } => {
            (b"ms ", key, Some(value))
        }
        Command::Get { key } => (b"mg ", key, None),
        Command::Delete { key, .. } => (b"md ", key, None),
        Command::Increment { key, .. } | Command::Stamp { key } => (b"ma ", key, None),
    };
    out.extend_from_slice(verb);
    out.extend_from_slice(key.as_str().as_bytes());
    if let Some(value) = value {
        number(b" ", value.len() as u64, out);
    }
    match *command {
        Command::Add { ttl, .. } => {
            out.extend_from_slice(b" ME c");
            number(b" T", wire_ttl(ttl, server_time)?, out);
        }
        // Without `h`, the version is read without the item's lock: if a number is incremented
        // meanwhile, the old value is returned with the new version. The value of `h` is ignored.
        Command::Get { .. } => out.extend_from_slice(b" v c t f h"),
        Command::CompareAndSet { cas, ttl, .. } => {
            number(b" c C", cas, out);
            number(b" T", wire_ttl(ttl, server_time)?, out);
        }
        Command::Delete { cas, .. } => number(b" C", cas, out),
        Command::Append { .. } | Command::Prepend { .. } | Command::Classic { .. } => {}
        Command::Increment { by, initial, .. } => {
            number(b" v D", by, out);
            if let Some((first, ttl)) = initial {
                number(b" N", wire_ttl(ttl, server_time)?, out);
                number(b" J", first, out);
            }
        }
        // Increments by 0: the number's version is drawn under the item's lock, and no room is
        // needed.
        Command::Stamp { .. } => out.extend_from_slice(b" c N0 J0 D0"),
    }
    number(b" O", opaque.into(), out);
    out.extend_from_slice(b"\r\n");
    if let Some(value) = value {
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
    Ok(())
}

fn grow(verb: &[u8], key: &Key, value: &[u8], out: &mut Vec<u8>) -> Result<()> {
    classic(verb, key, [0, 0, value.len() as u64], None, value, out)
}

/// `<verb> <key> <flags> <exptime> <length>[ <cas>]`, and the value.
fn classic(
    verb: &[u8],
    key: &Key,
    numbers: [u64; 3],
    cas: Option<u64>,
    value: &[u8],
    out: &mut Vec<u8>,
) -> Result<()> {
    out.extend_from_slice(verb);
    out.extend_from_slice(key.as_str().as_bytes());
    for value in numbers.into_iter().chain(cas) {
        number(b" ", value, out);
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// The reply to a classic command; `None` if the command was refused, the line is invalid, or the
/// command is not a classic one.
pub(super) fn parse_classic(command: &Command<'_>, line: &[u8]) -> Option<Reply> {
    match (command, line) {
        (Command::Append { .. } | Command::Prepend { .. } | Command::Classic { .. }, b"STORED") => {
            Some(Reply::Written)
        }
        (Command::Append { .. } | Command::Prepend { .. }, b"NOT_STORED") => Some(Reply::Missing),
        (Command::Classic { cas: None, .. }, b"NOT_STORED") => Some(Reply::Exists),
        (Command::Classic { cas: Some(_), .. }, b"EXISTS") => Some(Reply::VersionMismatch),
        (Command::Classic { cas: Some(_), .. }, b"NOT_FOUND") => Some(Reply::Missing),
        _ => None,
    }
}

/// Appends a prefix and a number.
fn number(before: &[u8], number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(before);
    push_number(number, out);
}

/// The TTL as it is sent.
pub(super) fn wire_ttl(ttl: Ttl, server_time: impl Fn(Bound) -> u64) -> Result<u64> {
    let absolute = match ttl {
        Ttl::Never => return Ok(0),
        Ttl::For(seconds) | Ttl::Left(seconds) if seconds <= LONGEST_RELATIVE_TTL => {
            return Ok(seconds);
        }
        Ttl::For(seconds) => server_time(Bound::Latest).saturating_add(seconds),
        Ttl::Left(seconds) => server_time(Bound::Earliest).saturating_add(seconds),
        Ttl::Until(moment) => moment.max(LONGEST_RELATIVE_TTL + 1),
    };
    // memcached reads a signed 32-bit number; a greater one would mean "expired" or "never
    // expires".
    match i32::try_from(absolute) {
        Ok(_) => Ok(absolute),
        Err(_) => Err(Error::invalid(
            "The duration ends beyond January 2038, where memcached's calendar stops.",
        )),
    }
}

/// The first line of a reply.
pub(super) struct Head {
    code: ReturnCode,
    cas: Option<u64>,
    ttl: Option<i64>,
    flags: u32,
    pub(super) opaque: Option<u32>,
    /// The length of the value that follows.
    pub(super) length: Option<usize>,
}

/// Parses the first line of a reply. The second part of an error states whether the server refused
/// the command with an error line.
pub(super) fn parse(line: &[u8]) -> std::result::Result<Head, (Error, bool)> {
    if let Some(head) = plain_success(line) {
        return Ok(head);
    }
    let nonsense = || {
        let shown: String = String::from_utf8_lossy(line).chars().take(80).collect();
        (
            Error::protocol(format!(
                "The server answered {shown:?}, which is not the meta protocol."
            )),
            false,
        )
    };
    let response = MetaResponse::parse_header(line).map_err(|error| match error {
        exp::Error::Server(text) | exp::Error::Rejected(text) => {
            (Error::protocol(format!("The server refused the request: {text}.")), true)
        }
        _ => nonsense(),
    })?;
    // The crate checks the announced length, but does not expose it.
    let length = match line.strip_prefix(b"VA ") {
        Some(rest) => {
            let digits = rest.split(|&byte| byte == b' ').next().unwrap_or_default();
            Some(
                parse_number(digits)
                    .and_then(|length| usize::try_from(length).ok())
                    .ok_or_else(nonsense)?,
            )
        }
        None => None,
    };
    let result = parse_meta_result(response).map_err(|_| nonsense())?;
    let opaque = result
        .opaque
        .as_deref()
        .and_then(parse_number)
        .and_then(|opaque| u32::try_from(opaque).ok());
    Ok(Head {
        code: result.rc,
        cas: result.cas,
        ttl: result.ttl,
        flags: result.client_flags.unwrap_or(0),
        opaque,
        length,
    })
}

/// `HD O<opaque>` and `HD c<cas> O<opaque>`: the replies to the acquisition of a free lock, its
/// release and an insert. They are parsed here, which saves the allocations of the crate's parser;
/// all other replies go through that parser.
fn plain_success(line: &[u8]) -> Option<Head> {
    let rest = line.strip_prefix(b"HD ")?;
    let (cas, rest) = match rest.strip_prefix(b"c") {
        Some(rest) => {
            let end = rest.iter().position(|&byte| byte == b' ')?;
            (Some(parse_number(&rest[..end])?), &rest[end + 1..])
        }
        None => (None, rest),
    };
    let opaque = u32::try_from(parse_number(rest.strip_prefix(b"O")?)?).ok()?;
    Some(Head {
        code: ReturnCode::Hd,
        cas,
        ttl: None,
        flags: 0,
        opaque: Some(opaque),
        length: None,
    })
}

/// Parses digits only, without overflow.
fn parse_number(digits: &[u8]) -> Option<u64> {
    let add = |number: u64, digit: &u8| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    };
    if digits.is_empty() { None } else { digits.iter().try_fold(0, add) }
}

/// The meaning of the server's reply to a command.
pub(super) fn decode(
    command: &Command<'_>,
    head: Head,
    value: Option<Vec<u8>>,
    life: Life,
) -> Result<Reply> {
    let version = || match head.cas {
        Some(cas) if cas != 0 => Ok(life.version(cas).with_note(head.flags)),
        _ => Err(Error::protocol(
            "The server's reply carries no cas id: start memcached without -C.",
        )),
    };
    let reply = match (command, head.code, value) {
        (
            Command::Add { .. } | Command::CompareAndSet { .. } | Command::Stamp { .. },
            ReturnCode::Hd,
            None,
        ) => Reply::Stored(Stored { version: version()?, fence: 0 }),
        (Command::Add { .. }, ReturnCode::Ns, None) => Reply::Exists,
        (Command::Get { .. }, ReturnCode::En, None) => Reply::Missing,
        (Command::Get { .. }, ReturnCode::Va, Some(value)) => Reply::Value(Item {
            value,
            version: version()?,
            remaining: head.ttl.and_then(|ttl| u64::try_from(ttl).ok()).map(Duration::from_secs),
            fence: 0,
        }),
        (Command::Delete { .. }, ReturnCode::Hd, None) => Reply::Deleted,
        (Command::CompareAndSet { .. } | Command::Delete { .. }, ReturnCode::Ex, None) => {
            Reply::VersionMismatch
        }
        (
            Command::CompareAndSet { .. } | Command::Delete { .. } | Command::Increment { .. },
            ReturnCode::Nf,
            None,
        ) => Reply::Missing,
        (Command::Increment { .. }, ReturnCode::Va, Some(value)) => {
            let number =
                std::str::from_utf8(&value).ok().and_then(|text| text.trim_end().parse().ok());
            Reply::Number(
                number.ok_or_else(|| {
                    Error::protocol("The server answered a count with no number.")
                })?,
            )
        }
        (_, code, _) => {
            return Err(Error::protocol(format!(
                "The server answered {code:?}, which does not fit the request."
            )));
        }
    };
    Ok(reply)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Moment;
    use crate::name::Keyspace;
    use crate::store::Expiry;
    use crate::store::memcached::handshake::ServerTime;
    use proptest::prelude::*;

    #[test]
    fn commands_look_as_measured_on_the_wire() {
        let key = Keyspace::default().lock(b"x");
        let cas = 7;
        let ttl = Ttl::of(Expiry::After(Duration::from_secs(30)));
        let text = |command: Command<'_>| {
            let mut out = Vec::new();
            encode(&command, 9, |_| 1_795_170_000, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            text(Command::Add { key: &key, value: b"v", ttl }),
            "ms lock:x 1 ME c T32 O9\r\nv\r\n"
        );
        assert_eq!(text(Command::Get { key: &key }), "mg lock:x v c t f h O9\r\n");
        assert_eq!(
            text(Command::CompareAndSet { key: &key, cas, value: b"v", ttl }),
            "ms lock:x 1 c C7 T32 O9\r\nv\r\n"
        );
        assert_eq!(text(Command::Delete { key: &key, cas }), "md lock:x C7 O9\r\n");
        assert_eq!(
            text(Command::Append { key: &key, value: b"v" }),
            "append lock:x 0 0 1\r\nv\r\n"
        );
        assert_eq!(
            text(Command::Prepend { key: &key, value: b"v" }),
            "prepend lock:x 0 0 1\r\nv\r\n"
        );
        assert_eq!(
            text(Command::Increment { key: &key, by: 2, initial: Some((2, ttl)) }),
            "ma lock:x v D2 N32 J2 O9\r\n"
        );
        assert_eq!(text(Command::Stamp { key: &key }), "ma lock:x c N0 J0 D0 O9\r\n");
        let put = |cas, ttl| text(Command::Classic { key: &key, cas, flags: 5, value: b"v", ttl });
        assert_eq!(put(None, Ttl::Never), "add lock:x 5 0 1\r\nv\r\n");
        assert_eq!(
            put(Some(cas), Ttl::Until(1_795_170_100)),
            "cas lock:x 5 1795170100 1 7\r\nv\r\n"
        );
    }

    #[test]
    fn the_short_way_reads_what_the_crate_reads() {
        for line in ["HD O9", "HD c12 O9", "HD c18446744073709551615 O4294967295"] {
            let short = plain_success(line.as_bytes()).unwrap();
            let crates =
                parse_meta_result(MetaResponse::parse_header(line.as_bytes()).unwrap()).unwrap();
            assert_eq!((short.code, short.cas, short.ttl), (crates.rc, crates.cas, crates.ttl));
            assert_eq!(short.opaque.unwrap().to_string().into_bytes(), crates.opaque.unwrap());
        }
        for line in [
            "HD",
            "HD ",
            "HD O",
            "HD c O9",
            "HD c1",
            "HD c1 O9 t3",
            "HD c99999999999999999999 O1",
            "HD O-1",
            "NS O9",
        ] {
            assert!(plain_success(line.as_bytes()).is_none(), "{line}");
        }
        let head = parse(b"VA 5 c7 t30 O9").ok().unwrap();
        assert_eq!(
            (head.length, head.cas, head.ttl, head.opaque),
            (Some(5), Some(7), Some(30), Some(9))
        );
        for (line, refused) in [
            ("SERVER_ERROR out of memory", true),
            ("CLIENT_ERROR bad", true),
            ("ERROR", true),
            ("", false),
            ("VA", false),
            ("VA x O9", false),
            ("QQ", false),
        ] {
            assert_eq!(parse(line.as_bytes()).err().map(|(_, said)| said), Some(refused), "{line}");
        }
    }

    proptest! {
        #[test]
        fn what_the_short_way_reads_the_crate_reads_too(line in "HD( c[0-9]{0,21})?( ?O[0-9+]{0,11}){0,2}") {
            if let Some(short) = plain_success(line.as_bytes()) {
                let crates = parse_meta_result(MetaResponse::parse_header(line.as_bytes()).unwrap()).unwrap();
                prop_assert_eq!((short.code, short.cas, short.ttl), (crates.rc, crates.cas, crates.ttl));
                prop_assert_eq!(short.opaque.map(u64::from), crates.opaque.and_then(|text| parse_number(&text)));
            }
        }

        #[test]
        fn any_line_can_be_parsed(line: Vec<u8>, tail in "(HD|VA|EN|NS) [ -~]{0,40}") {
            let _ = parse(&line);
            let _ = parse(tail.as_bytes());
        }
    }

    /// As of a counter that other programs gave a long life: acquiring must not prolong it, nor
    /// fail at the end of the calendar.
    #[test]
    fn what_is_left_of_a_long_life_is_written_as_no_more() {
        let key = Keyspace::default().lock(b"x");
        let encoded = |days: u64| {
            let ttl = Ttl::of(Expiry::Unchanged(Some(Duration::from_secs(days * 86_400))));
            let mut out = Vec::new();
            let read = ServerTime { shown: 1_795_170_000, at: Moment::from_boot(Duration::ZERO) };
            let now = Moment::from_boot(Duration::from_secs(1_000_000));
            let put = Command::CompareAndSet { key: &key, cas: 7, value: b"", ttl };
            encode(&put, 0, |bound| read.at(now, bound), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert!(encoded(20).contains(" T1728000 "), "{}", encoded(20));
        let absolute = 1_795_170_000 + 1_000_000 + 40 * 86_400;
        assert!(encoded(40).contains(&format!(" T{} ", absolute - 201)), "{}", encoded(40));
    }

    #[test]
    fn beyond_thirty_days_a_ttl_is_absolute_on_the_servers_clock() {
        let key = Keyspace::default().lock(b"x");
        let encoded = |days: u64, now: u64| {
            let ttl = Ttl::of(Expiry::After(Duration::from_secs(days * 86_400)));
            let mut out = Vec::new();
            encode(&Command::Add { key: &key, value: b"", ttl }, 0, |_| now, &mut out)
                .map(|()| String::from_utf8(out).unwrap())
        };
        assert!(encoded(29, 1_795_170_000).unwrap().contains(" T2506103 "));
        assert!(encoded(30, 1_795_170_000).unwrap().contains(" T1797762520 "));
        assert!(encoded(31, 1_795_170_000).unwrap().contains(" T1797848937 "));
        assert!(encoded(366, 2_147_000_000).is_err());
    }
}
