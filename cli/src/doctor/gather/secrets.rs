//! The files with secrets, and the certificates of the API.

use lunar_control::config::Config;
use lunar_control::doctor::facts::{Certificate, SecretFile};
use lunar_control::secret::SecretSource;
use lunar_control::value::Textual;
use openssl::asn1::Asn1Time;
use openssl::x509::X509;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A longer file is no secret and no certificate.
const BYTES_MAX: u64 = 1 << 20;

/// The files with secrets of a configuration, the configuration itself if it has some, and the certificates.
pub(super) fn read(config: &Config, file: &Path) -> (Vec<SecretFile>, Vec<Certificate>) {
    let users = config.users.iter().map(|(name, user)| (format!("user {name}"), &user.secret));
    let keys = config.tls_keys.iter().map(|(name, key)| (format!("TLS key {name}"), &key.secret));
    let tokens = config.api_tokens.iter().map(|(name, token)| (format!("API token {name}"), &token.secret));
    let (mut files, mut is_inline) = (Vec::new(), false);
    for (owner, secret) in users.chain(keys).chain(tokens) {
        match secret {
            SecretSource::File(path) => files.extend(secret_file(owner, path.path(), true)),
            SecretSource::Inline(_) => is_inline = true,
            SecretSource::Credential(_) => {}
        }
    }
    if is_inline {
        files.extend(secret_file("the configuration file".to_owned(), file, false));
    }
    let mut certificates = Vec::new();
    for (name, listener) in &config.api_listeners {
        let path = |path: &lunar_control::value::FilePath| PathBuf::from(path.text());
        let key = listener.key.as_ref().map(path);
        files.extend(key.and_then(|key| secret_file(format!("API listener {name}"), &key, false)));
        let Some(path) = listener.certificate.as_ref().map(path) else { continue };
        let days = bytes(&path).and_then(|pem| days_left(&pem));
        certificates.extend(days.map(|days| Certificate { listener: name.clone(), path, days }));
    }
    (files, certificates)
}

fn bytes(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn secret_file(owner: String, path: &Path, is_whole: bool) -> Option<SecretFile> {
    let mode = std::fs::metadata(path).ok()?.mode();
    let ends_blank = bytes(path).filter(|_| is_whole).map(|bytes| ends_blank(&bytes));
    Some(SecretFile { owner, path: path.to_owned(), mode, ends_blank })
}

/// Whether a secret ends with a blank. A newline at its end is not part of it.
fn ends_blank(bytes: &[u8]) -> bool {
    let text = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    text.last().is_some_and(|byte| byte.is_ascii_whitespace())
}

/// The days until the first of the certificates of a chain expires.
fn days_left(pem: &[u8]) -> Option<i32> {
    let now = Asn1Time::days_from_now(0).ok()?;
    let chain = X509::stack_from_pem(pem).ok()?;
    let days = chain.iter().filter_map(|one| {
        let left = now.diff(one.not_after()).ok()?;
        // Less than a day ago is expired, too.
        Some(if left.days == 0 && left.secs < 0 { -1 } else { left.days })
    });
    days.min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use openssl::asn1::Asn1Integer;
    use openssl::bn::BigNum;
    use openssl::hash::MessageDigest;
    use openssl::pkey::PKey;
    use openssl::rsa::Rsa;
    use openssl::x509::X509Builder;

    fn certificate(end: &Asn1Time) -> Vec<u8> {
        let key = PKey::from_rsa(Rsa::generate(2048).expect("a key")).expect("a key");
        let mut builder = X509Builder::new().expect("a builder");
        builder.set_pubkey(&key).expect("set");
        let serial = BigNum::from_u32(1).and_then(|number| Asn1Integer::from_bn(&number)).expect("a number");
        builder.set_serial_number(&serial).expect("set");
        builder.set_not_before(&Asn1Time::from_unix(0).expect("a time")).expect("set");
        builder.set_not_after(end).expect("set");
        builder.sign(&key, MessageDigest::sha256()).expect("signed");
        builder.build().to_pem().expect("text")
    }

    #[test]
    fn the_days_of_a_certificate_are_counted() {
        let in_a_month = certificate(&Asn1Time::days_from_now(30).expect("a time"));
        let left = days_left(&in_a_month).expect("a certificate");
        assert!((29..=30).contains(&left), "{left}");
        let expired = certificate(&Asn1Time::from_unix(1_000_000_000).expect("a time"));
        assert!(days_left(&expired).is_some_and(|days| days < -1000));
        let chain = [in_a_month, expired].concat();
        assert!(days_left(&chain).is_some_and(|days| days < 0), "the first that expires");
        assert_eq!((days_left(b""), days_left(b"no certificate")), (None, None));
    }

    #[test]
    fn a_blank_at_the_end_of_a_secret_is_seen() {
        for (text, wanted) in [
            ("secret\n", false),
            ("secret\r\n", false),
            ("secret", false),
            ("secret \n", true),
            ("secret\t", true),
            ("a\n\n", true),
            ("", false),
        ] {
            assert_eq!(ends_blank(text.as_bytes()), wanted, "{text:?}");
        }
    }
}
