//! The address at which a waiter can be woken: text in the queue entry that only the notifier
//! reads.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Longer text is not an address.
pub(crate) const LONGEST: usize = 64;

/// The address at which a waiter can be woken: address and port of its UDP listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WakeAddress(SocketAddr);

impl WakeAddress {
    /// The address of this UDP socket; `None` unless it can be the unicast address of one program.
    pub fn udp(address: SocketAddr) -> Option<WakeAddress> {
        (address.port() != 0 && is_one_hosts(address.ip())).then_some(WakeAddress(address))
    }

    /// Parses the text of an address.
    pub fn parse(text: &[u8]) -> Option<WakeAddress> {
        let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= LONGEST)?;
        WakeAddress::udp(text.parse().ok()?)
    }

    /// Whether the text is an address of another transport, which this version does not know: a
    /// scheme in lower-case letters, a colon, and text for that transport. A waiter with such an
    /// address is treated as a waiter without a listener, and its entry is preserved.
    pub fn is_foreign(text: &[u8]) -> bool {
        let scheme = text.iter().take_while(|byte| byte.is_ascii_lowercase()).count();
        scheme > 0
            && text.len() <= LONGEST
            && text.get(scheme) == Some(&b':')
            && text.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'#')
    }

    /// The UDP socket.
    pub fn socket(self) -> SocketAddr {
        self.0
    }
}

impl fmt::Display for WakeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Whether this can be the address of one host, rather than of several or of none.
pub(crate) fn is_one_hosts(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    let several = match ip {
        IpAddr::V4(ip) => ip.is_broadcast() || ip.is_multicast(),
        IpAddr::V6(ip) => ip.is_multicast(),
    };
    !several && !ip.is_unspecified()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_hosts_own() {
        for good in ["10.0.0.7:40123", "[fd00::7]:40123"] {
            assert_eq!(WakeAddress::parse(good.as_bytes()).unwrap().to_string(), good);
        }
        for bad in ["10.0.0.7", "10.0.0.7:0", "0.0.0.0:9", "255.255.255.255:9", "[ff02::1]:9", ""] {
            assert_eq!(WakeAddress::parse(bad.as_bytes()), None, "{bad}");
            assert!(!WakeAddress::is_foreign(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn another_transport_has_a_scheme() {
        assert!(WakeAddress::is_foreign(b"redis:channel-7"));
        assert!(WakeAddress::is_foreign(b"futex:/dev/shm/x"));
        for bad in ["redis", ":7", "Redis:7", "redis:a b", "redis:a#b", "redis:\u{e9}"] {
            assert!(!WakeAddress::is_foreign(bad.as_bytes()), "{bad}");
        }
        assert!(!WakeAddress::is_foreign(format!("redis:{}", "x".repeat(59)).as_bytes()));
    }
}
