//! TLS of the network sinks: trusted authorities and the client certificate.
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use parshall_host::error::UserError;
use serde::Deserialize;

/// The TLS configuration of a sink.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsConfig {
    /// Trusted authorities (PEM); `None` for those of the host.
    pub authorities: Option<PathBuf>,
    /// Client certificate chain and its private key (PEM).
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The `tls` of a table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TlsTable {
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl TlsTable {
    /// The configuration; the files are read when the sink opens.
    pub fn validate(self) -> Result<TlsConfig, UserError> {
        let identity = match (self.cert, self.key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err(UserError::new("`tls` has one of `cert` and `key`", "give both, or neither")),
        };
        Ok(TlsConfig { authorities: self.ca, identity })
    }
}

impl TlsConfig {
    /// Reads the files.
    ///
    /// # Errors
    /// A [`UserError`] that names the file that cannot be used.
    pub fn load(&self) -> anyhow::Result<Arc<ClientConfig>> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(self.roots()?);
        let Some((chain, key)) = &self.identity else { return Ok(Arc::new(builder.with_no_client_auth())) };
        let wrong = |path: &PathBuf, why: String| {
            let what = format!("{}: {why}", path.display());
            UserError::new(what, "give a certificate chain and its private key, both in PEM")
        };
        let chain_read = certificates(chain).map_err(|why| wrong(chain, why))?;
        let key_read = PrivateKeyDer::from_pem_file(key).map_err(|e| wrong(key, e.to_string()))?;
        let config = builder.with_client_auth_cert(chain_read, key_read).map_err(|e| wrong(chain, e.to_string()))?;
        Ok(Arc::new(config))
    }

    fn roots(&self) -> anyhow::Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        if let Some(path) = &self.authorities {
            let wrong = |why: String| UserError::new(format!("{}: {why}", path.display()), "give certificates in PEM");
            for certificate in certificates(path).map_err(wrong)? {
                roots.add(certificate).map_err(|e| wrong(e.to_string()))?;
            }
        } else {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                let hint = "install the package ca-certificates, or name a file of authorities";
                return Err(UserError::new("this host has no certificate authorities to trust", hint).into());
            }
        }
        Ok(roots)
    }
}

fn certificates(path: &PathBuf) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(list) if list.is_empty() => Err("holds no certificate".to_owned()),
        Ok(list) => Ok(list),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unusable_file_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let empty = directory.path().join("empty.pem");
        std::fs::write(&empty, "nothing").unwrap();
        for path in [empty.clone(), directory.path().join("missing.pem")] {
            let authorities = TlsConfig { authorities: Some(path.clone()), identity: None };
            let error = authorities.load().unwrap_err();
            assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
            assert!(error.downcast_ref::<UserError>().is_some());
        }
    }
}
