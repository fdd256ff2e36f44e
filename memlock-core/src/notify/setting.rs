//! The URL's parameter `notify`.

use std::net::IpAddr;

use super::address::is_one_hosts;
use crate::error::{Error, Result};

/// The value of the parameter: `notify=off`, or `notify=address[:port[-port]]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum NotifySetting {
    /// The address by which the server is reached.
    #[default]
    Near,
    Off,
    At(IpAddr, Option<(u16, u16)>),
}

impl NotifySetting {
    pub(crate) fn parse(text: &str) -> Result<NotifySetting> {
        let unreadable = || {
            Error::config(
                "The URL's parameter notify is not read: write notify=off, or notify=address, \
                 notify=address:port or notify=address:first-last with the address by which other \
                 waiters' hosts reach this one ([…] around an IPv6 address).",
            )
        };
        if text == "off" {
            return Ok(NotifySetting::Off);
        }
        let unbracketed = text.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let (host, ports) = match unbracketed {
            Some((host, "")) => (host, None),
            Some((host, ports)) => (host, Some(ports.strip_prefix(':').ok_or_else(unreadable)?)),
            None if text.matches(':').count() > 1 => (text, None),
            None => text.split_once(':').map_or((text, None), |(host, ports)| (host, Some(ports))),
        };
        let address: IpAddr = host.parse().map_err(|_| unreadable())?;
        if !is_one_hosts(address) {
            return Err(unreadable());
        }
        let Some(ports) = ports else { return Ok(NotifySetting::At(address, None)) };
        let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if 0 < first && first <= last => {
                Ok(NotifySetting::At(address, Some((first, last))))
            }
            _ => Err(unreadable()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::entries::{line, waiters};
    use crate::wait_id::WaitId;
    use proptest::prelude::*;
    use std::net::SocketAddr;

    use crate::notify::WakeAddress;

    #[test]
    fn the_urls_parameter_is_read_in_every_form() {
        let at = |ip: &str, ports| Ok(NotifySetting::At(ip.parse().unwrap(), ports));
        assert_eq!(NotifySetting::parse("off"), Ok(NotifySetting::Off));
        assert_eq!(NotifySetting::parse("10.0.0.1"), at("10.0.0.1", None));
        assert_eq!(NotifySetting::parse("10.0.0.1:4000"), at("10.0.0.1", Some((4000, 4000))));
        assert_eq!(NotifySetting::parse("10.0.0.1:4000-4010"), at("10.0.0.1", Some((4000, 4010))));
        assert_eq!(NotifySetting::parse("fd00::1"), at("fd00::1", None));
        assert_eq!(NotifySetting::parse("[fd00::1]"), at("fd00::1", None));
        assert_eq!(NotifySetting::parse("[fd00::1]:4000-4010"), at("fd00::1", Some((4000, 4010))));
        for bad in [
            "",
            "on",
            "host",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "::ffff:224.0.0.1",
            "[::ffff:0.0.0.0]:4000",
            "10.0.0.1:",
            "10.0.0.1:0",
            "10.0.0.1:9-8",
            "[fd00::1]4",
        ] {
            let said = NotifySetting::parse(bad).unwrap_err().to_string();
            assert!(said.contains("notify=off"), "{bad:?}: {said}");
        }
    }

    proptest! {
        #[test]
        fn any_text_can_be_read(text in "\\PC{0,40}", address in "[0-9.:a-f\\[\\]-]{0,30}") {
            let _ = NotifySetting::parse(&text);
            let _ = NotifySetting::parse(&address);
        }

        /// Otherwise the waiter would be in the queue with an entry that cannot be read.
        #[test]
        fn a_waiter_at_an_accepted_address_can_be_woken(ip: IpAddr, mapped: [u8; 4], port in 1_u16..) {
            for ip in [ip, IpAddr::from(mapped), IpAddr::V6(std::net::Ipv4Addr::from(mapped).to_ipv6_mapped())] {
                let accepted = NotifySetting::parse(&ip.to_string()).is_ok();
                let address = WakeAddress::udp(SocketAddr::new(ip, port));
                prop_assert_eq!(address.is_some(), accepted, "{}", ip);
                let line = line(address, WaitId(1), crate::wait::entries::Request::default());
                prop_assert_eq!(waiters(&line).next().map(|entry| entry.address), Some(address));
            }
        }
    }
}
