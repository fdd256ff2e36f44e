//! Encrypting a password with the public key that a server sends.
//!
//! The key is parsed here: the parser of the `mysql_common` crate panics at malformed ones, and brings a
//! megabyte of regular expressions.

use mysql_common::crypto::rsa::{GetRandom, Pkcs1OaepPadding, PublicKey};
use mysql_common::num_bigint::BigUint;

use crate::error::{Error, Result};

/// The lengths of keys that are used, in bytes.
const LENGTHS: std::ops::RangeInclusive<usize> = 128..=2048;
/// What the padding takes of a block.
const PADDING: usize = 42;

const INTEGER: u8 = 0x02;
const BITS: u8 = 0x03;
const SEQUENCE: u8 = 0x30;

/// The password with a NUL behind it, combined with the challenge, and encrypted.
pub(super) fn encrypt(password: &[u8], scramble: &[u8], pem: &[u8]) -> Result<Vec<u8>> {
    let bad = || Error::protocol("The server sent a public key that is none.");
    let key = decode(pem).ok_or_else(bad)?;
    let (modulus, exponent) = numbers(&key).ok_or_else(bad)?;
    let combined = password.iter().chain(&[0]).zip(scramble.iter().cycle());
    let block: Vec<u8> = combined.map(|(byte, mask)| byte ^ mask).collect();
    if block.len() != password.len() + 1 || block.len() + PADDING > modulus.len() {
        return Err(Error::config("The password is too long for the server's public key."));
    }
    let key = PublicKey::new(BigUint::from_bytes_be(modulus), BigUint::from_bytes_be(exponent));
    key.encrypt_block(block, Pkcs1OaepPadding::new(GetRandom))
        .map_err(|error| Error::unreachable(format!("The password cannot be encrypted: {error}.")))
}

/// The bytes of a PEM block.
fn decode(pem: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(pem).ok()?.trim();
    let (_, rest) = text.split_once("PUBLIC KEY-----")?;
    let (body, _) = rest.split_once("-----END")?;
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for letter in body.bytes().filter(|byte| !byte.is_ascii_whitespace() && *byte != b'=') {
        let digit = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        (bits, count) = (bits << 6 | u32::from(digit), count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    Some(bytes)
}

/// The modulus and the exponent of a key, which may be wrapped into one with the name of its kind.
fn numbers(key: &[u8]) -> Option<(&[u8], &[u8])> {
    let (mut inner, _) = element(key, SEQUENCE)?;
    if let Some((_, rest)) = element(inner, SEQUENCE) {
        let (bits, _) = element(rest, BITS)?;
        let (0, key) = bits.split_first()? else { return None };
        (inner, _) = element(key, SEQUENCE)?;
    }
    let (modulus, rest) = element(inner, INTEGER)?;
    let (exponent, _) = element(rest, INTEGER)?;
    let modulus = modulus.strip_prefix(&[0]).unwrap_or(modulus);
    let is_sound = LENGTHS.contains(&modulus.len())
        && modulus.first().is_some_and(|&first| first >= 0x80)
        && (1..=8).contains(&exponent.len());
    is_sound.then_some((modulus, exponent))
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
    use mysql_common::crypto::der;
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

    const SCRAMBLE: &[u8] = &[7; 20];

    #[test]
    fn a_key_is_read_as_by_the_crate() {
        let (bytes, _) = der::pem_to_der(KEY).unwrap();
        assert_eq!(decode(KEY), Some(bytes.clone()));
        let (modulus, exponent) = numbers(&bytes).unwrap();
        let key = PublicKey::from_pem(KEY).unwrap();
        assert_eq!(&BigUint::from_bytes_be(modulus), key.modulus());
        assert_eq!(&BigUint::from_bytes_be(exponent), key.exponent());
    }

    #[test]
    fn a_password_fits_or_not() {
        assert_eq!(encrypt(b"secret", SCRAMBLE, KEY).unwrap().len(), 256);
        assert!(encrypt(&[b'a'; 213], SCRAMBLE, KEY).is_ok());
        assert!(encrypt(&[b'a'; 214], SCRAMBLE, KEY).is_err());
        assert!(encrypt(b"secret", b"", KEY).is_err());
    }

    proptest! {
        #[test]
        fn no_key_breaks_the_login(place in 27..KEY.len(), byte: u8, cut in 0..KEY.len(), bytes: Vec<u8>) {
            let mut key = KEY.to_vec();
            key[place] = byte;
            let _ = encrypt(b"secret", SCRAMBLE, &key);
            let _ = encrypt(b"secret", SCRAMBLE, &KEY[..cut]);
            let _ = numbers(&bytes);
            let _ = decode(&bytes);
        }
    }
}
