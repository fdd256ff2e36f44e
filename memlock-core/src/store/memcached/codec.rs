//! Operations to meta commands, and meta replies back to ours.

use memcache::exp::{
    self, ArithmeticOptions, DeleteOptions, GetOptions, MetaCommandResult, ReturnCode, SetMode, SetOptions,
};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::lease::Ttl;
use crate::store::{Incarnation, Item, Op, Reply, Version};

/// Beyond this many seconds memcached takes a TTL for an absolute Unix time.
const LONGEST_RELATIVE_TTL: u64 = 30 * 24 * 3600;

/// Writes one command, marked with `opaque`, to the end of `out`. `server_time` is asked for the server's
/// own Unix time where the TTL has to be absolute.
pub(super) fn encode(
    op: &Op<'_>,
    opaque: u32,
    server_time: impl Fn() -> u64,
    out: &mut Vec<u8>,
) -> Result<()> {
    let opaque = Some(opaque.to_string().into_bytes());
    let wire_ttl = |ttl: Ttl| {
        let seconds = ttl.seconds();
        let absolute = seconds > LONGEST_RELATIVE_TTL;
        let wire = if absolute { server_time().saturating_add(seconds) } else { seconds };
        // memcached reads a signed 32-bit number; anything above would come out as "expired" or "for ever".
        match u32::try_from(wire) {
            Ok(wire) if i32::try_from(wire).is_ok() => Ok(wire),
            _ => Err(Error::invalid(
                "The duration ends beyond January 2038, where memcached's calendar stops.",
            )),
        }
    };
    let command = match *op {
        Op::Add { key, value, ttl } => {
            let mut options = SetOptions::default();
            options.mode = SetMode::Add;
            options.return_cas = true;
            options.ttl = Some(wire_ttl(ttl)?);
            options.opaque = opaque;
            exp::build_set(key.as_str(), value, &options)
        }
        Op::Get { key } => {
            let mut options = GetOptions::default();
            options.return_cas = true;
            options.return_ttl = true;
            options.opaque = opaque;
            exp::build_get(key.as_str(), &options)
        }
        Op::Swap { key, version, value, ttl } => {
            let mut options = SetOptions::default();
            options.compare_cas = Some(version.cas);
            options.return_cas = true;
            options.ttl = Some(wire_ttl(ttl)?);
            options.opaque = opaque;
            exp::build_set(key.as_str(), value, &options)
        }
        Op::Delete { key, version } => {
            let mut options = DeleteOptions::default();
            options.compare_cas = Some(version.cas);
            options.opaque = opaque;
            exp::build_delete(key.as_str(), &options)
        }
        Op::Append { key, value } => {
            let mut options = SetOptions::default();
            options.mode = SetMode::Append;
            options.return_cas = true;
            options.opaque = opaque;
            exp::build_set(key.as_str(), value, &options)
        }
        Op::Count { key, by, initial } => {
            let mut options = ArithmeticOptions::default();
            options.delta = Some(by);
            if let Some((first, ttl)) = initial {
                options.initial = Some(first);
                options.initial_ttl = Some(wire_ttl(ttl)?);
            }
            options.opaque = opaque;
            exp::build_arithmetic(key.as_str(), &options)
        }
    };
    command.and_then(|command| command.encode_into(out)).map_err(|error| {
        Error::new(crate::error::ErrorKind::Internal, format!("A command could not be encoded: {error}."))
    })
}

/// What the server's answer to `op` means.
pub(super) fn decode(
    op: &Op<'_>,
    result: MetaCommandResult,
    value: Option<Vec<u8>>,
    life: Incarnation,
) -> Result<Reply> {
    let version = || match result.cas {
        Some(cas) if cas != 0 => Ok(Version { incarnation: life, cas }),
        _ => Err(Error::protocol("The server's reply carries no cas id: start memcached without -C.")),
    };
    let reply = match (op, result.rc, value) {
        (Op::Add { .. } | Op::Swap { .. } | Op::Append { .. }, ReturnCode::Hd, None) => {
            Reply::Stored(version()?)
        }
        (Op::Add { .. }, ReturnCode::Ns, None) => Reply::Exists,
        (Op::Append { .. }, ReturnCode::Ns | ReturnCode::Nf, None) => Reply::Missing,
        (Op::Get { .. }, ReturnCode::En, None) => Reply::Missing,
        (Op::Get { .. }, ReturnCode::Va, Some(value)) => Reply::Value(Item {
            value,
            version: version()?,
            remaining: result.ttl.and_then(|ttl| u64::try_from(ttl).ok()).map(Duration::from_secs),
        }),
        (Op::Delete { .. }, ReturnCode::Hd, None) => Reply::Deleted,
        (Op::Swap { .. } | Op::Delete { .. }, ReturnCode::Ex, None) => Reply::Changed,
        (Op::Swap { .. } | Op::Delete { .. } | Op::Count { .. }, ReturnCode::Nf, None) => Reply::Missing,
        (Op::Count { .. }, ReturnCode::Va, Some(value)) => {
            let number = std::str::from_utf8(&value).ok().and_then(|text| text.trim_end().parse().ok());
            Reply::Number(
                number.ok_or_else(|| Error::protocol("The server answered a count with no number."))?,
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
    use crate::name::Keyspace;
    use crate::store::Route;

    #[test]
    fn commands_look_as_measured_on_the_wire() {
        let key = Keyspace::default().lock(b"x");
        let version = Version { incarnation: Incarnation { boot: 1, pid: 1 }, cas: 7 };
        let ttl = Ttl::covering(Duration::from_secs(30));
        let text = |op: Op<'_>| {
            let mut out = Vec::new();
            encode(&op, 9, || 1_795_170_000, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(text(Op::Add { key: &key, value: b"v", ttl }), "ms lock:x 1 ME c T31 O9\r\nv\r\n");
        assert_eq!(text(Op::Get { key: &key }), "mg lock:x v c t O9\r\n");
        assert_eq!(
            text(Op::Swap { key: &key, version, value: b"v", ttl }),
            "ms lock:x 1 c T31 C7 O9\r\nv\r\n"
        );
        assert_eq!(text(Op::Delete { key: &key, version }), "md lock:x C7 O9\r\n");
        assert_eq!(text(Op::Append { key: &key, value: b"v" }), "ms lock:x 1 MA c O9\r\nv\r\n");
        assert_eq!(
            text(Op::Count { key: &key, by: 2, initial: Some((2, ttl)) }),
            "ma lock:x v D2 N31 J2 O9\r\n"
        );
        let _ = Route::of(&key);
    }

    #[test]
    fn beyond_thirty_days_a_ttl_is_absolute_on_the_servers_clock() {
        let key = Keyspace::default().lock(b"x");
        let encoded = |days: u64, now: u64| {
            let ttl = Ttl::covering(Duration::from_secs(days * 86_400));
            let mut out = Vec::new();
            encode(&Op::Add { key: &key, value: b"", ttl }, 0, || now, &mut out)
                .map(|()| String::from_utf8(out).unwrap())
        };
        assert!(encoded(29, 1_795_170_000).unwrap().contains(" T2505601 "));
        assert!(encoded(30, 1_795_170_000).unwrap().contains(" T1797762001 "));
        assert!(encoded(31, 1_795_170_000).unwrap().contains(" T1797848401 "));
        assert!(encoded(366, 2_147_000_000).is_err());
    }
}
