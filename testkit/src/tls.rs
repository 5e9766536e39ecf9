//! A TLS client over real sockets, which believes any server and says what happened.

pub mod records;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, ProtocolVersion, SignatureScheme, StreamOwned,
    SupportedProtocolVersion,
};

use crate::certificates::Issued;
use records::Records;

/// Which versions a client offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Versions {
    Only12,
    Only13,
    Both,
}

/// Makes connections of one kind.
#[derive(Clone)]
pub struct TlsClient {
    config: Arc<ClientConfig>,
    believer: Arc<Believer>,
}

/// A connection whose handshake is done, as far as the client knows.
pub struct TlsConnection(StreamOwned<ClientConnection, TcpStream>);

impl TlsClient {
    pub fn new(identity: Option<&Issued>, versions: Versions, alpn: &[&str]) -> Self {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let versions: &[&'static SupportedProtocolVersion] = match versions {
            Versions::Only12 => &[&rustls::version::TLS12],
            Versions::Only13 => &[&rustls::version::TLS13],
            Versions::Both => &[&rustls::version::TLS13, &rustls::version::TLS12],
        };
        let believer = Arc::new(Believer { provider: provider.clone(), status: Mutex::default() });
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .expect("versions")
            .dangerous()
            .with_custom_certificate_verifier(believer.clone());
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let chain = CertificateDer::pem_slice_iter(identity.chain.as_bytes());
                let chain = chain.collect::<Result<Vec<_>, _>>().expect("a chain");
                let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).expect("a key");
                builder.with_client_auth_cert(chain, key).expect("an identity")
            }
        };
        config.enable_early_data = true;
        config.enable_secret_extraction = true;
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Self { config: Arc::new(config), believer }
    }

    /// What the last server showed of its certificate's status.
    pub fn last_status(&self) -> Vec<u8> {
        self.believer.status.lock().expect("no panic within").clone()
    }

    /// Shakes hands.
    pub fn connect(&self, to: SocketAddr, name: &str) -> io::Result<TlsConnection> {
        let mut socket = TcpStream::connect(to)?;
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let mut connection = ClientConnection::new(self.config.clone(), name).map_err(io::Error::other)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut socket)?;
        }
        Ok(TlsConnection(StreamOwned::new(connection, socket)))
    }

    /// Whether the server let this client speak before the handshake the last time.
    pub fn may_speak_early(&self, name: &str) -> io::Result<bool> {
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let mut connection = ClientConnection::new(self.config.clone(), name).map_err(io::Error::other)?;
        Ok(connection.early_data().is_some())
    }

    /// One request, and everything that is answered until the close.
    pub fn get(&self, to: SocketAddr, name: &str, path: &str) -> io::Result<String> {
        let mut connection = self.connect(to, name)?;
        write!(connection, "GET {path} HTTP/1.1\r\nhost: {name}\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        match connection.read_to_string(&mut answer) {
            Ok(_) => Ok(answer),
            Err(e) => Err(e),
        }
    }
}

impl TlsConnection {
    pub fn alpn(&self) -> Option<&[u8]> {
        self.0.conn.alpn_protocol()
    }

    pub fn version(&self) -> Option<ProtocolVersion> {
        self.0.conn.protocol_version()
    }

    /// Of the server's certificate.
    pub fn server_certificate(&self) -> Option<&[u8]> {
        Some(self.0.conn.peer_certificates()?.first()?)
    }

    pub fn resumed(&self) -> bool {
        self.0.conn.handshake_kind() == Some(rustls::HandshakeKind::Resumed)
    }

    /// To send what the library would not.
    pub fn into_records(self) -> Records {
        let version = self.version();
        let StreamOwned { conn, sock } = self.0;
        let secrets = conn.dangerous_extract_secrets().expect("a finished handshake");
        Records::new(sock, version, secrets.tx)
    }

    /// Another key for what is sent from here on; TLS 1.3 only.
    pub fn refresh_keys(&mut self) -> Result<(), Error> {
        self.0.conn.refresh_traffic_keys()
    }
}

impl Read for TlsConnection {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl Write for TlsConnection {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[derive(Debug)]
struct Believer {
    provider: Arc<CryptoProvider>,
    /// The last one's.
    status: Mutex<Vec<u8>>,
}

impl ServerCertVerifier for Believer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        status: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        *self.status.lock().expect("no panic within") = status.to_vec();
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
