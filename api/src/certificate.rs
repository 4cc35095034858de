//! The ends of the certificates of listeners: clients refuse an expired certificate, and nothing says so before.

use lunar_control::api::TroubleView;
use lunar_control::trouble::TroubleCode;
use openssl::asn1::Asn1Time;
use openssl::x509::X509;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time before the end of a certificate from which on it is a trouble: enough for those who issue it by hand.
const WARNING: Duration = Duration::from_secs(14 * 86_400);

/// The end of a certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expiry {
    /// In seconds since the beginning of 1970.
    pub seconds: u64,
    /// The date in words.
    pub words: String,
}

impl Expiry {
    /// The expiry of a certificate in DER; `None` if the certificate cannot be read.
    #[must_use]
    pub fn of(certificate: &[u8]) -> Option<Self> {
        let certificate = X509::from_der(certificate).ok()?;
        let end = certificate.not_after();
        let epoch = Asn1Time::from_unix(0).ok()?;
        let time = epoch.diff(end).ok()?;
        let seconds = i64::from(time.days) * 86_400 + i64::from(time.secs);
        Some(Self { seconds: u64::try_from(seconds).ok()?, words: end.to_string() })
    }

    /// The trouble of the listener with this certificate, if it ends soon or has ended.
    #[must_use]
    pub fn trouble(&self, listener: &str, now: SystemTime) -> Option<TroubleView> {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let end = Duration::from_secs(self.seconds);
        let verb = match () {
            () if now >= end => "has expired at",
            () if now + WARNING >= end => "expires at",
            () => return None,
        };
        let words = format!("its certificate {verb} {}", self.words);
        let told = TroubleView::told(TroubleCode::CertificateExpires, &format!("API listener {listener}"), words);
        Some(TroubleView { remedy: "renew the certificate, then `lunar apply` reads it".to_owned(), ..told })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openssl::asn1::Asn1Integer;
    use openssl::bn::BigNum;
    use openssl::ec::{EcGroup, EcKey};
    use openssl::hash::MessageDigest;
    use openssl::nid::Nid;
    use openssl::pkey::PKey;

    const DAY: u64 = 86_400;

    fn ending(seconds: i64) -> Vec<u8> {
        let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).expect("a curve");
        let key = PKey::from_ec_key(EcKey::generate(&group).expect("a key")).expect("a key");
        let mut made = X509::builder().expect("a builder");
        let number = BigNum::from_u32(1).and_then(|number| Asn1Integer::from_bn(&number)).expect("a number");
        made.set_serial_number(&number).expect("set");
        made.set_not_before(&Asn1Time::from_unix(0).expect("a time")).expect("set");
        made.set_not_after(&Asn1Time::from_unix(seconds).expect("a time")).expect("set");
        made.set_pubkey(&key).expect("set");
        made.sign(&key, MessageDigest::sha256()).expect("signed");
        made.build().to_der().expect("DER")
    }

    #[test]
    fn a_certificate_is_a_trouble_before_it_ends() {
        let end = 2_000 * DAY + 17;
        let expiry = Expiry::of(&ending(i64::try_from(end).expect("a date"))).expect("a certificate");
        assert_eq!((expiry.seconds, expiry.words.contains("1975 GMT")), (end, true), "{}", expiry.words);
        let at = |seconds: u64| expiry.trouble("one", UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(end - 15 * DAY), None);
        let soon = at(end - 13 * DAY).expect("soon");
        assert_eq!((soon.kind, soon.subject.as_str()), ("certificate-expires", "API listener one"));
        assert!(soon.words.contains("expires at Jun") && soon.to_string().ends_with("reads it"), "{soon}");
        assert!(at(end).is_some_and(|trouble| trouble.words.contains("has expired")));
        assert_eq!(Expiry::of(b"no certificate"), None);
    }
}
