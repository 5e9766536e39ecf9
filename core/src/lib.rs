//! The shared words of nuncio.
